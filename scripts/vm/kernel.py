# SPDX-License-Identifier: Apache-2.0
"""Gets a Debian kernel into the cache: CACHE/kernel-VERSION/{vmlinux,early,modules,release}.

The package is downloaded with apt from a configuration of its own below CACHE/apt, so that neither
the machine's sources nor its package lists are touched, checked against the archive's key, unpacked
with dpkg-deb and never installed. What is there is used as it is: no network, no question of apt.
"""
import glob
import os
import re
import shutil
import subprocess

import modules
import vmlinux

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRROR = "http://deb.debian.org"
SOURCES = {
    "6.1": (f"{MIRROR}/debian bookworm", f"{MIRROR}/debian-security bookworm-security"),
    "6.12": (f"{MIRROR}/debian bookworm-backports",),
    "7.2": (f"{MIRROR}/debian trixie-backports",),
}


class Unavailable(Exception):
    """This machine cannot have the kernel; the text is the reason."""


def prepare(cache, version):
    """Returns the kernel's directory, with everything in it."""
    done = os.path.join(cache, "kernel-" + version)
    if os.path.exists(os.path.join(done, "release")):
        return done
    if not os.path.exists(KEYRING):
        raise Unavailable(f"{KEYRING} is missing (package debian-archive-keyring)")
    work = done + ".new"
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(os.path.join(work, "root"))
    for package in download(os.path.join(cache, "apt-" + version), SOURCES[version], version, work):
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


def download(apt, sources, version, target):
    """Fetches the newest image package of the version and returns the files."""
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
            kernel = vmlinux.unpack(f.read())
        except ValueError as error:
            raise Unavailable(str(error)) from error
    with open(os.path.join(work, "vmlinux"), "wb") as f:
        f.write(kernel)
    tree = modules.Tree(trees[0])
    tree.write(os.path.join(work, "early"), tree.closure(modules.EARLY))
    tree.write(os.path.join(work, "modules"), tree.closure(modules.WANTED + modules.EARLY))
    release = os.path.basename(os.path.dirname(trees[0]))
    shutil.rmtree(root)
    # Last: its presence says that the rest is whole.
    with open(os.path.join(work, "release"), "w", encoding="utf-8") as f:
        f.write(release)
