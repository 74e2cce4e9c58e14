# SPDX-License-Identifier: Apache-2.0
"""The guest's file systems: an initramfs, a base image (tools and modules, one per kernel) and a
project image (the source tree and what was built). All are kept in the cache under a digest of what
is in them; a file counts by path, mode, size and modification time, so that nothing is read to find
out that nothing has changed."""
import glob
import hashlib
import json
import os
import shutil
import stat
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
TREE = "/ringvol"  # where the source tree is in the guest
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"

# dash: busybox's own shell prefers its applets to the real tools.
REQUIRED = """
    dash bash losetup mount umount blkid findmnt lsblk blockdev dmesg fsfreeze fstrim wipefs fallocate
    mkfs.ext4 mke2fs e2fsck fsck.ext4 resize2fs tune2fs dumpe2fs debugfs
    mkfs.xfs xfs_repair xfs_growfs xfs_db xfs_io
    mkfs.btrfs btrfs btrfstune dmsetup tar gzip thin_check thin_dump thin_repair
""".split()
# busybox has some of these, without options that tests use. cryptsetup brings its library, which the driver loads when it is needed.
OPTIONAL = """
    fio cryptsetup lvm thin_restore strace perf filefrag e4crypt lsattr chattr e2image xfs_admin xfs_info xfs_spaceman fsck.xfs
    setfattr getfattr setfacl realpath unshare nsenter prlimit flock timeout stat dd cp truncate stdbuf od
    sort find grep xargs ps curl socat ldd getconf
""".split()
FILES = ("/etc/mke2fs.conf", "/etc/xattr.conf", "/etc/protocols", "/etc/services")

ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "group": "root:x:0:\ndisk:x:6:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost guest\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "fstab": "",
}


def digest_of(*parts):
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def signature(path):
    st = os.stat(path)
    return [stat.S_IMODE(st.st_mode), st.st_size, st.st_mtime_ns]


def contents(directory):
    """What was put into the cache or comes with the source is told by its bytes."""
    found = {}
    for path in sorted(glob.glob(directory + "/**", recursive=True)):
        if os.path.isfile(path):
            with open(path, "rb") as f:
                found[os.path.relpath(path, directory)] = hashlib.sha256(f.read()).hexdigest()
    return found


def which(tool):
    return shutil.which(tool, path=PATH)


def is_elf(path):
    with open(path, "rb") as f:
        return f.read(4) == b"\x7fELF"


class Libraries:
    """ldd, remembered: a program that has not changed is asked once."""

    def __init__(self, cache):
        self.file = os.path.join(cache, "libraries.json")
        try:
            with open(self.file, encoding="utf-8") as f:
                self.known = json.load(f)
        except (OSError, ValueError):
            self.known = {}

    def of(self, path):
        real = os.path.realpath(path)
        key = digest_of(real, signature(real))
        entry = self.known.get(real)
        if not entry or entry[0] != key or not all(os.path.exists(p) for p in entry[1]):
            entry = self.known[real] = [key, self.ask(real)]
        return entry[1]

    @staticmethod
    def ask(path):
        if not is_elf(path):
            return []
        text = subprocess.run(["ldd", path], capture_output=True, text=True, check=False,
                              env={"PATH": PATH, "LC_ALL": "C"}).stdout
        words = [word for line in text.splitlines() for word in line.split()]
        return sorted({word for word in words if word.startswith("/")})

    def save(self):
        new = f"{self.file}.{os.getpid()}"
        with open(new, "w", encoding="utf-8") as f:
            json.dump(self.known, f)
        os.replace(new, self.file)


def in_guest(path):
    """/bin and its like are links into /usr there, on the machine they may be directories."""
    first = path.split("/")[1]
    return "/usr" + path if first in ("bin", "sbin", "lib", "lib64") else path


def library_in_guest(path):
    # There is no ld.so.cache in the guest: only the built-in search path.
    target = in_guest(path)
    usual = os.path.dirname(target) in (LIBRARIES, "/usr/lib", "/usr/lib64")
    return target if usual else f"{LIBRARIES}/{os.path.basename(target)}"


class Layer:
    """A directory tree to be: guest path -> source file, plus some made here."""

    def __init__(self, libraries):
        self.libraries = libraries
        self.files = {}
        self.texts = {}
        self.links = {}
        self.directories = []

    def add(self, source, target):
        self.files[target] = source
        for library in self.libraries.of(source):
            self.files.setdefault(library_in_guest(library), library)

    def digest(self, *more):
        listed = {}
        for target, source in list(self.files.items()):
            try:
                listed[target] = [source, signature(source)]
            except FileNotFoundError:
                del self.files[target]  # a temporary file of a build
        return digest_of(listed, self.texts, self.links, self.directories, *more)

    def write(self, root):
        for directory in self.directories:
            os.makedirs(root + directory, exist_ok=True)
        for target, link in self.links.items():
            os.makedirs(os.path.dirname(root + target), exist_ok=True)
            os.symlink(link, root + target)
        for target, source in self.files.items():
            os.makedirs(os.path.dirname(root + target), exist_ok=True)
            try:
                shutil.copy2(source, root + target)
            except FileNotFoundError:
                continue
        for target, text in self.texts.items():
            os.makedirs(os.path.dirname(root + target), exist_ok=True)
            with open(root + target, "w", encoding="utf-8") as f:
                f.write(text)


def make_ext4(layer, image):
    """Writes the layer as an ext4 image, under its name only when it is whole."""
    work = f"{image}.{os.getpid()}"
    root = work + ".root"
    try:
        os.makedirs(root)
        layer.write(root)
        size = blocks = 0
        for parent, directories, files in os.walk(root):
            blocks += len(directories) + len(files)
            size += sum(os.lstat(os.path.join(parent, f)).st_size for f in files)
        # A block of slack and an inode of 256 bytes a file, and room for bitmaps and directories.
        size += blocks * (4096 + 512) + size // 50 + (8 << 20)
        with open(work, "wb") as f:
            f.truncate(size)
        subprocess.run([which("mkfs.ext4"), "-q", "-F", "-m", "0", "-b", "4096", "-O",
                        "^has_journal,^resize_inode", "-N", str(blocks + 64), "-E",
                        "root_owner=0:0,lazy_itable_init=1", "-d", root, work],
                       check=True, stdin=subprocess.DEVNULL)
        os.rename(work, image)
    finally:
        shutil.rmtree(root, ignore_errors=True)
        if os.path.exists(work):
            os.unlink(work)


def cached(cache, kind, digest, make):
    """Returns CACHE/KIND-DIGEST, made if need be; its time of modification is that of its use."""
    path = os.path.join(cache, f"{kind}-{digest}")
    if os.path.exists(path):
        os.utime(path)
        return path
    make(path)
    # An image that somebody is about to open is younger than this.
    for other in glob.glob(os.path.join(cache, kind + "-*")):
        try:
            if other != path and os.stat(other).st_mtime < time.time() - 600:
                os.unlink(other)
        except FileNotFoundError:
            pass
    return path


def base(cache, kernel, libraries):
    layer = Layer(libraries)
    layer.links = {"/bin": "usr/bin", "/sbin": "usr/sbin", "/lib": "usr/lib", "/lib64": "usr/lib64",
                   "/etc/mtab": "/proc/self/mounts"}
    layer.directories = ["/dev", "/proc", "/sys", "/run", "/tmp", "/root", "/mnt", "/var/tmp",
                         "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", TREE]
    layer.texts = {"/etc/" + name: text for name, text in ETC.items()}
    missing = [tool for tool in REQUIRED if not which(tool)]
    if missing:
        raise FileNotFoundError("the guest needs these tools: " + " ".join(missing))
    for tool in REQUIRED + OPTIONAL:
        path = which(tool)
        if path:
            layer.add(path, in_guest(path))
    for path in FILES:
        if os.path.exists(path):
            layer.add(path, path)
    layer.links["/usr/bin/sh"] = "dash"
    layer.add(which("busybox"), "/usr/bin/busybox")
    have = {os.path.basename(path) for path in layer.files}
    for applet in applets():
        if applet not in have and applet != "sh":
            layer.links["/usr/bin/" + applet] = "busybox"
    # Where the kernel looks for it.
    layer.links["/usr/sbin/modprobe"] = "../bin/busybox"
    layer.add(os.path.join(HERE, "guest", "start"), "/usr/lib/vm/start")
    with open(os.path.join(kernel, "release"), encoding="utf-8") as f:
        release = f.read().strip()
    for path in glob.glob(os.path.join(kernel, "modules", "*")):
        layer.files[f"/usr/lib/modules/{release}/{os.path.basename(path)}"] = path
    return cached(cache, "base", layer.digest(), lambda path: make_ext4(layer, path))


def applets():
    out = subprocess.run([which("busybox"), "--list"], capture_output=True, text=True, check=True)
    return out.stdout.split()


def source_files():
    """What git knows or would add; in a source tree without git, everything but build output."""
    try:
        out = subprocess.run(["git", "-C", TOP, "ls-files", "-zco", "--exclude-standard"],
                             capture_output=True, check=True).stdout
        names = [os.fsdecode(name) for name in out.split(b"\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = []
        for parent, directories, files in os.walk(TOP):
            if parent == TOP:
                directories[:] = [d for d in directories if not d.startswith(("build", "."))]
            names += [os.path.relpath(os.path.join(parent, f), TOP) for f in files]
    return [name for name in names if os.path.isfile(os.path.join(TOP, name))]


BUILT = ("build/ringvol", "build/tour", "build/proto/descriptor_set.pb", "build/tests/test_*")


def project(cache, libraries, extra):
    """The source tree, the release build's outputs, and extra (source, target) files."""
    layer = Layer(libraries)
    layer.directories = [TREE]
    for name in source_files():
        layer.files[f"{TREE}/{name}"] = os.path.join(TOP, name)
    for pattern in BUILT:
        for path in glob.glob(os.path.join(TOP, pattern)):
            if os.path.isfile(path):
                layer.add(path, f"{TREE}/{os.path.relpath(path, TOP)}")
    for source, target in extra:
        layer.add(source, target)
    return cached(cache, "project", layer.digest(), lambda path: make_ext4(layer, path))


class Cpio:
    """The newc format of an initramfs (Documentation/driver-api/early-userspace)."""

    def __init__(self):
        self.parts = []
        self.inode = 0

    def entry(self, name, mode, data=b"", device=(0, 0)):
        self.inode += 1
        raw = name.encode() + b"\0"
        fields = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(raw), 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields) + raw
        self.parts += [header, bytes(-len(header) % 4), data, bytes(-len(data) % 4)]

    def directory(self, name):
        self.entry(name, stat.S_IFDIR | 0o755)

    def file(self, name, data, mode=0o755):
        self.entry(name, stat.S_IFREG | mode, data)

    def bytes(self):
        self.entry("TRAILER!!!", 0)
        return b"".join(self.parts)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def initramfs(cache, kernel):
    early = os.path.join(kernel, "early")
    init = os.path.join(HERE, "guest", "init")

    def make(path):
        archive = Cpio()
        for name in "bin dev proc sys early base project rw root job".split():
            archive.directory(name)
        archive.entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
        archive.file("init", read(init))
        archive.file("bin/busybox", read(which("busybox")))
        with open(os.path.join(early, "modules.order"), encoding="utf-8") as f:
            order = f.read()
        archive.file("early/modules.order", order.encode())
        for name in order.split():
            archive.file(f"early/{name}.ko", read(os.path.join(early, name + ".ko")))
        new = f"{path}.{os.getpid()}"
        with open(new, "wb") as f:
            f.write(archive.bytes())
        os.rename(new, path)

    key = digest_of(contents(early), read(init).decode(), signature(which("busybox")))
    return cached(cache, "initramfs", key, make)


def job(command, token, archive):
    """A second archive behind the first, with what is different each time."""
    cpio = Cpio()
    cpio.directory("job")
    cpio.file("job/command", command)
    cpio.file("job/token", token + b"\n")
    if archive:
        cpio.file("job/archive", b"")
    return cpio.bytes()
