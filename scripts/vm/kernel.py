# SPDX-License-Identifier: Apache-2.0
"""Gets a Debian kernel into the cache: CACHE/kernel-VERSION/{vmlinux,early,modules,release}.

The package is downloaded with apt from a configuration of its own below CACHE/apt, so that neither
the machine's sources nor its package lists are touched, checked against the archive's key, unpacked
with dpkg-deb and never installed. What is there is used as it is: no network, no question of apt.

The ELF kernel is taken out of its bzImage here, as decompressing it in an emulated guest costs seconds at every boot. Modules are
unpacked with what they depend on; depmod is not needed, as the .modinfo section of a module tells everything.
"""
import bz2
import glob
import lzma
import os
import re
import shutil
import struct
import subprocess
import zlib

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRROR = "http://deb.debian.org"
SOURCES = {
    "6.1": (f"{MIRROR}/debian bookworm", f"{MIRROR}/debian-security bookworm-security"),
    "6.12": (f"{MIRROR}/debian bookworm-backports",),
    "7.2": (f"{MIRROR}/debian trixie-backports",),
}
# Found by modprobe once the root is up, those after the first line only when something asks.
WANTED = """
    virtio_console loop
    ext4 xfs btrfs fuse overlay
    dm-mod dm-flakey dm-log-writes dm-delay dm-thin-pool dm-snapshot dm-crypt dm-dust
    ublk_drv null_blk brd scsi_debug
    nvme-tcp nvmet-tcp nvme-keyring tls gcm ghash_generic dh_generic sha512_generic
    crc32c_generic crc32c_intel crc32c-cryptoapi xxhash_generic blake2b_generic sha256_generic
    xts aesni_intel raid6_pq
""".split()

# In the initramfs, loaded in dependency order before there is a root file system.
EARLY = "virtio_pci virtio_blk crc32c_generic crc32c_intel crc32c-cryptoapi ext4 overlay".split()


class Unavailable(Exception):
    """This machine cannot have the kernel; the text is the reason."""


def is_whole(directory):
    """Whether it has a kernel, with the modules that are wanted today."""
    try:
        with open(os.path.join(directory, "wanted"), encoding="utf-8") as f:
            return f.read().split() == WANTED + EARLY and os.path.exists(os.path.join(directory, "release"))
    except OSError:
        return False


def prepare(cache, version):
    """Returns the kernel's directory, with everything in it."""
    done = os.path.join(cache, "kernel-" + version)
    if is_whole(done):
        return done
    if not os.path.exists(KEYRING):
        raise Unavailable(f"{KEYRING} is missing (package debian-archive-keyring)")
    work = done + ".new"
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(os.path.join(work, "root"))
    try:
        packages = download(os.path.join(cache, "apt-" + version), SOURCES[version], version, work)
    except Unavailable:
        if os.path.exists(os.path.join(done, "release")):
            return done  # with fewer modules: what needs the others says so
        raise
    for package in packages:
        run("dpkg-deb", "-x", package, os.path.join(work, "root"))
        os.unlink(package)
    assemble(work)
    shutil.rmtree(done, ignore_errors=True)
    os.rename(work, done)
    return done


def run(*command, cwd=None, env=None):
    try:
        result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True,
                                stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise Unavailable(f"{command[0]}: {error.strerror}") from error
    if result.returncode != 0:
        last = (result.stderr.strip() or result.stdout.strip() or "no reason given").splitlines()
        raise Unavailable(f"{' '.join(command[:2])}: {last[-1]}")
    return result.stdout


def open_archive(apt, sources):
    """Makes a configuration of apt's below the directory, with the lists of these sources, and returns the environment for it."""
    for directory in ("lists/partial", "archives/partial", "parts"):
        os.makedirs(os.path.join(apt, directory), exist_ok=True)
    with open(os.path.join(apt, "sources.list"), "w", encoding="utf-8") as f:
        f.writelines(f"deb [arch=amd64 signed-by={KEYRING}] {s} main\n" for s in sources)
    # Dir::Etc::parts stays the machine's own: its proxy is wanted.
    config = os.path.join(apt, "apt.conf")
    with open(config, "w", encoding="utf-8") as f:
        f.write(f"""Dir::Etc::sourcelist "{apt}/sources.list";
Dir::Etc::sourceparts "{apt}/parts";
Dir::State::lists "{apt}/lists";
Dir::State::status "/dev/null";
Dir::Cache "{apt}";
APT::Architecture "amd64";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
""")
    env = dict(os.environ, APT_CONFIG=config, LC_ALL="C")
    run("apt-get", "-q", "update", env=env)
    return env


def download(apt, sources, version, target):
    """Fetches the newest image package of the version and returns the files."""
    env = open_archive(apt, sources)
    pattern = re.compile(rf"linux-image-({re.escape(version)}\.[0-9][^ ]*-amd64)")
    found = []
    for name in run("apt-cache", "pkgnames", "linux-image-", env=env).split():
        match = pattern.fullmatch(name)
        if match and not re.search(r"-(cloud|rt)-amd64$", name):
            found.append((tuple(int(n) for n in re.findall(r"\d+", name)), match[1]))
    if not found:
        raise Unavailable(f"no linux-image-{version}.*-amd64 in {', '.join(sources)}")
    release = max(found)[1]
    wanted = ["linux-image-" + release]
    # Newer packages are split, and the image package is an empty one.
    depends = run("apt-cache", "depends", wanted[0], env=env)
    wanted += [name for name in re.findall(r"Depends: (\S+)", depends)
               if re.fullmatch(rf"linux-(binary|modules)-{re.escape(release)}", name)]
    run("apt-get", "-q", "download", *wanted, cwd=target, env=env)
    # The lists are 14 MB and never read again.
    shutil.rmtree(apt)
    return sorted(glob.glob(os.path.join(target, "*.deb")))


def assemble(work):
    root = os.path.join(work, "root")
    images = (glob.glob(root + "/boot/vmlinuz-*") +
              glob.glob(root + "/usr/lib/modules/*/vmlinuz"))
    trees = glob.glob(root + "/lib/modules/*/kernel") + glob.glob(root + "/usr/lib/modules/*/kernel")
    if len(images) != 1 or len(trees) != 1:
        raise Unavailable("the kernel package has a layout that is not known here")
    with open(images[0], "rb") as f:
        try:
            kernel = unpack(f.read())
        except ValueError as error:
            raise Unavailable(str(error)) from error
    with open(os.path.join(work, "vmlinux"), "wb") as f:
        f.write(kernel)
    tree = Tree(trees[0])
    tree.write(os.path.join(work, "early"), tree.closure(EARLY))
    tree.write(os.path.join(work, "modules"), tree.closure(WANTED + EARLY))
    with open(os.path.join(work, "wanted"), "w", encoding="utf-8") as f:
        f.write(" ".join(WANTED + EARLY))
    release = os.path.basename(os.path.dirname(trees[0]))
    shutil.rmtree(root)
    # Last: its presence says that the rest is whole.
    with open(os.path.join(work, "release"), "w", encoding="utf-8") as f:
        f.write(release)


# ---- the kernel's image ----

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
    """Returns the ELF file's bytes; ValueError when this is no kernel we can read. The boot protocol's header says where the
    payload is (Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length): no magic number is searched for."""
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


# ---- its modules ----

def read_module(path):
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
            data = read_module(self.paths[name])
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
