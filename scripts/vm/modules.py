# SPDX-License-Identifier: Apache-2.0
"""Picks kernel modules out of a kernel package, with what they depend on, unpacks them and writes
the two files that busybox's modprobe reads. depmod is not needed: the .modinfo section of a module
tells everything."""
import lzma
import os
import struct

# Found by modprobe once the root is up, those after the first line only when something asks.
WANTED = """
    virtio_console loop
    ext4 xfs btrfs fuse overlay
    dm-mod dm-flakey dm-log-writes dm-delay dm-thin-pool dm-snapshot dm-crypt dm-dust
    ublk_drv null_blk brd scsi_debug
    crc32c_generic crc32c_intel crc32c-cryptoapi xxhash_generic blake2b_generic sha256_generic
    xts aesni_intel raid6_pq
""".split()

# In the initramfs, loaded in dependency order before there is a root file system.
EARLY = "virtio_pci virtio_blk crc32c_generic crc32c_intel crc32c-cryptoapi ext4 overlay".split()


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    return lzma.decompress(data) if path.endswith(".xz") else data


def modinfo(data):
    """The key=value pairs of the .modinfo section, of a little-endian ELF64 object."""
    table = struct.unpack_from("<Q", data, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    strings = headers[names][4]
    for name, _, _, _, offset, length in headers:
        end = data.index(b"\0", strings + name)
        if data[strings + name:end] == b".modinfo":
            pairs = data[offset:offset + length].split(b"\0")
            return [p.decode(errors="replace").split("=", 1) for p in pairs if b"=" in p]
    return []


def stem(name):
    return os.path.basename(name).split(".", 1)[0].replace("-", "_")


class Tree:
    """The modules of one unpacked package."""

    def __init__(self, directory):
        self.paths = {}
        for parent, _, files in os.walk(directory):
            for file in files:
                if ".ko" in file:
                    self.paths[stem(file)] = os.path.join(parent, file)
        self.cache = {}

    def load(self, name):
        if name not in self.cache:
            data = read(self.paths[name])
            info = modinfo(data)
            needs = [stem(n) for key, value in info if key == "depends"
                     for n in value.split(",") if n]
            soft = [stem(n) for key, value in info if key == "softdep" and value.startswith("pre:")
                    for n in value[4:].split()]
            aliases = [value for key, value in info if key == "alias"]
            self.cache[name] = data, needs, soft, aliases
        return self.cache[name]

    def closure(self, names):
        """Names in the order in which they can be loaded. What the package lacks is built into the
        kernel or newer than it."""
        order, seen = [], set()

        def visit(name):
            if name in seen or name not in self.paths:
                return
            seen.add(name)
            _, needs, soft, _ = self.load(name)
            for other in soft + needs:
                visit(other)
            order.append(name)

        for name in names:
            visit(stem(name))
        return order

    def write(self, target, names):
        """Puts the modules, flat, into target with modules.dep and modules.alias."""
        os.makedirs(target, exist_ok=True)
        dep, alias = [], []
        for name in names:
            data, needs, _, aliases = self.load(name)
            with open(os.path.join(target, name + ".ko"), "wb") as f:
                f.write(data)
            chain = [n for n in reversed(self.closure(needs)) if n in names]
            dep.append(f"{name}.ko:" + "".join(f" {n}.ko" for n in chain))
            alias += [f"alias {pattern} {name}" for pattern in aliases]
        for file, lines in (("modules.dep", dep), ("modules.alias", alias),
                            ("modules.symbols", []), ("modules.order", names)):
            with open(os.path.join(target, file), "w", encoding="utf-8") as f:
                f.write("".join(line + "\n" for line in lines))
