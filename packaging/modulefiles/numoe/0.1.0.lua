-- Lmod: copy to a folder of MODULEPATH, as numoe/0.1.0.lua, and change prefix to what configure was given.
local prefix = "/opt/numoe/0.1.0"

help([[numoe runs Mixture-of-Experts language models: man numoe, man numoe-batch]])
whatis("Name: numoe")
whatis("Version: 0.1.0")
whatis("Description: Mixture-of-Experts language models on the CPUs of multi-socket machines")

conflict("numoe")
prepend_path("PATH", pathJoin(prefix, "bin"))
prepend_path("PKG_CONFIG_PATH", pathJoin(prefix, "lib/pkgconfig"))
prepend_path("LD_LIBRARY_PATH", pathJoin(prefix, "lib"))
-- man looks beside PATH by itself, where nobody has set this.
if os.getenv("MANPATH") then
    prepend_path("MANPATH", pathJoin(prefix, "share/man"))
end
-- A model for who names none:
-- setenv("NUMOE_MODEL", "/shared/models/model.gguf")
