#!/usr/bin/env python3
"""Writes a fixture anew with ffn_gate_exps and ffn_up_exps as one ffn_gate_up_exps, the gate's rows of each
expert before its up rows. Needs gguf and numpy.

    fuse_gate_up.py ../fixtures/deepseek2-lite-a/deepseek2-lite-a-f32.gguf OUT.gguf
"""

import sys

import gguf
import numpy

source = gguf.GGUFReader(sys.argv[1])
arch = source.fields["general.architecture"].contents()
writer = gguf.GGUFWriter(sys.argv[2], arch)
for name, field in source.fields.items():
    if name.startswith("GGUF.") or name == "general.architecture":
        continue
    kind = field.types[0]
    writer.add_key_value(name, field.contents(), kind,
                         field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
tensors = {t.name: t for t in source.tensors}
for name, tensor in tensors.items():
    if name.endswith("ffn_up_exps.weight"):
        continue
    data = tensor.data
    if name.endswith("ffn_gate_exps.weight"):
        data = numpy.concatenate([data, tensors[name.replace("gate", "up")].data], axis=1)
        name = name.replace("gate", "gate_up")
    writer.add_tensor(name, numpy.ascontiguousarray(data))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
