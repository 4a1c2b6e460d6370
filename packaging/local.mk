# What distributions and clusters build numoe with. packaging/README.md says how.
EXTRA_DIST += packaging/README.md packaging/debian packaging/numoe.spec packaging/spack \
	packaging/easybuild packaging/apptainer packaging/modulefiles
EXTRA_DIST += tests/check-packages

# Not part of `make check`: builds each of them, as far as there are tools; minutes. PACKAGES chooses.
.PHONY: check-packages
check-packages:
	$(AM_V_at)$(MAKE) $(AM_MAKEFLAGS) dist XZ_OPT=-0
	$(AM_V_at)$(SHELL) $(top_srcdir)/tests/check-packages $(abs_top_builddir)/$(distdir).tar.xz \
	    $(abs_top_builddir) $(PACKAGES)
