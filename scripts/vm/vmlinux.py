#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Unpacks the ELF kernel inside an x86 bzImage: vmlinux.py VMLINUZ VMLINUX.

Decompressing it in an emulated guest costs seconds at every boot. The boot protocol's header says
where the payload is (Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length);
no magic number is searched for.
"""
import bz2
import lzma
import struct
import subprocess
import sys
import zlib


def with_tool(*command):
    def unpack(data):
        # A format with a size appended makes the tool complain after it has written everything.
        return subprocess.run(command, input=data, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, check=False).stdout
    return unpack


FORMATS = (
    (b"\xfd7zXZ\0", lambda data: lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(data)),
    (b"\x1f\x8b", lambda data: zlib.decompressobj(31).decompress(data)),
    (b"\x28\xb5\x2f\xfd", with_tool("zstd", "-dcq")),
    (b"\x02\x21\x4c\x18", with_tool("lz4", "-dcq")),
    (b"BZh", lambda data: bz2.BZ2Decompressor().decompress(data)),
    (b"\x5d\0\0", lambda data: lzma.LZMADecompressor(lzma.FORMAT_ALONE).decompress(data)),
    (b"\x7fELF", lambda data: data),
)


def unpack(image):
    """Returns the ELF file's bytes; ValueError when this is no kernel we can read."""
    if image[0x202:0x206] != b"HdrS" or struct.unpack_from("<H", image, 0x206)[0] < 0x208:
        raise ValueError("not a bzImage with a payload header (boot protocol 2.08)")
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    payload = image[(sectors + 1) * 512 + offset:][:length]
    for magic, decompress in FORMATS:
        if payload.startswith(magic):
            elf = decompress(payload)
            # The last four bytes are the size of what comes out (little endian).
            if not elf.startswith(b"\x7fELF") or (
                    magic != b"\x7fELF" and len(elf) != struct.unpack("<I", payload[-4:])[0]):
                raise ValueError(f"the payload ({magic!r}) does not unpack to an ELF file")
            return elf
    raise ValueError(f"unknown compression, payload starts with {payload[:8].hex()}")


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as source:
        kernel = unpack(source.read())
    with open(sys.argv[2], "wb") as target:
        target.write(kernel)
