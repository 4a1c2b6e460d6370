#!/usr/bin/env python3
"""Writes routes_{short,long}.npy (int32 [MoE layers, tokens, experts used]) next to each router.npz, for
readers without zip: the reference's expert ids by falling weight; -1 where reference.json says to skip
the row because two experts tie in float32.
  routes.py DIR..."""
import json, sys
import numpy as np

for folder in sys.argv[1:]:
    router = np.load(f'{folder}/router.npz')
    skip = json.load(open(f'{folder}/reference.json'))['skip_rows']
    for name in ('short', 'long'):
        layers = sorted(int(k.split('_')[1][1:]) for k in router if k.startswith(name) and k.endswith('_idx'))
        ids = np.stack([router[f'{name}_L{il}_idx'] for il in layers]).astype('<i4')
        ids[:, skip[name]] = -1
        np.save(f'{folder}/routes_{name}.npy', ids)
        print(folder, name, ids.shape)
