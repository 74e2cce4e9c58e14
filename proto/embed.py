# SPDX-License-Identifier: Apache-2.0
"""Writes a file's bytes as a C array: embed.py INPUT OUTPUT NAME HEADER."""
import sys

source, target, name, header = sys.argv[1:]
with open(source, "rb") as f:
    data = f.read()
with open(target, "w", encoding="ascii") as f:
    f.write(f'#include "{header}"\n\nconst unsigned char {name}[] = {{\n')
    for i in range(0, len(data), 16):
        f.write("\t" + " ".join(f"0x{b:02x}," for b in data[i : i + 16]) + "\n")
    f.write(f"}};\nconst size_t {name}_len = sizeof({name});\n")
