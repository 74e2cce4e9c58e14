#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs a directory as a container image: one layer, in an archive of the OCI image layout.

The same directory, options and --epoch give the same bytes: entries are sorted, belong to root and
carry the epoch as their time; only names, modes, contents, links and hard links count. The archive
can be imported under its name by containerd (ctr, nerdctl, k3s), podman and skopeo, which read
index.json, and by docker, which reads manifest.json. Standard library only.
"""
import argparse
import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import stat
import sys
import tarfile
import tempfile
import time

MANIFEST = 'application/vnd.oci.image.manifest.v1+json'
INDEX = 'application/vnd.oci.image.index.v1+json'
CONFIG = 'application/vnd.oci.image.config.v1+json'
LAYER = 'application/vnd.oci.image.layer.v1.tar'

VARIANTS = {'arm64': 'v8'}  # what containerd takes an image without a variant for
# A host with a dot or a port, a path, a tag: what needs no "docker.io/library" guessed before it.
NAME = re.compile(r'^[a-z0-9.-]+(\.|:\d)[a-z0-9.:-]*(/[a-z0-9]+([._-]+[a-z0-9]+)*)+:[\w][\w.-]{0,127}$', re.A)


class Refused(Exception):
    """The directory or an option cannot be made an image."""


class Hashed:
    """A file to write to, with its digest and size so far."""

    def __init__(self, file):
        self.file = file
        self.hash = hashlib.sha256()
        self.size = 0

    def write(self, data):
        self.hash.update(data)
        self.size += len(data)
        return self.file.write(data)

    def flush(self):
        self.file.flush()

    @property
    def digest(self):
        return 'sha256:' + self.hash.hexdigest()


def entries(root):
    """Relative paths below root, parents before their children, in an order of bytes."""
    found = []
    for directory, names, files in os.walk(root):
        for name in names + files:
            found.append(os.path.relpath(os.path.join(directory, name), root))
    return sorted(found, key=lambda path: os.fsencode(path).split(b'/'))


def entry(root, path, epoch, first_of):
    """The tar header of one path. first_of: inode -> the path that has its bytes."""
    status = os.lstat(os.path.join(root, path))
    if os.path.basename(path).startswith('.wh.'):
        raise Refused(f'{path}: a name that begins with .wh. means a deletion in a layer')
    info = tarfile.TarInfo(path)
    info.mode = stat.S_IMODE(status.st_mode)
    info.mtime = epoch
    if stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        info.type = tarfile.SYMTYPE
        info.mode = 0o777
        info.linkname = os.readlink(os.path.join(root, path))
    elif stat.S_ISREG(status.st_mode):
        inode = (status.st_dev, status.st_ino)
        if status.st_nlink > 1 and inode in first_of:
            info.type = tarfile.LNKTYPE
            info.linkname = first_of[inode]
        else:
            first_of[inode] = path
            info.size = status.st_size
    else:
        raise Refused(f'{path}: neither file, directory nor link')
    return info


def write_layer(root, epoch, out):
    """The directory as a tar stream."""
    first_of = {}
    with tarfile.open(fileobj=out, mode='w|', format=tarfile.PAX_FORMAT) as tar:
        for path in entries(root):
            info = entry(root, path, epoch, first_of)
            if info.isreg():
                with open(os.path.join(root, path), 'rb') as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)


def layer(root, epoch, compress, file):
    """Writes the layer to file. Returns its descriptor and the digest of what is in it unpacked."""
    packed = Hashed(file)
    if compress == 'gzip':
        # No name and no time in the header.
        with gzip.GzipFile(filename='', mode='wb', fileobj=packed, mtime=0, compresslevel=6) as gz:
            plain = Hashed(gz)
            write_layer(root, epoch, plain)
        media = LAYER + '+gzip'
    else:
        plain = packed
        write_layer(root, epoch, plain)
        media = LAYER
    return {'mediaType': media, 'digest': packed.digest, 'size': packed.size}, plain.digest


def to_json(value):
    return json.dumps(value, sort_keys=True, separators=(',', ':')).encode()


def blob(media, data):
    return {'mediaType': media, 'digest': 'sha256:' + hashlib.sha256(data).hexdigest(), 'size': len(data)}


def rfc3339(epoch):
    return time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(epoch))


def platform(arch):
    found = {'architecture': arch, 'os': 'linux'}
    if arch in VARIANTS:
        found['variant'] = VARIANTS[arch]
    return found


def config(options, diff_id):
    run = {
        'Entrypoint': options.entrypoint,
        'Cmd': options.cmd,
        'Env': options.env,
        'Labels': dict(pair(label, '--label') for label in options.label),
        'User': options.user,
        'WorkingDir': options.workdir,
    }
    return platform(options.arch) | {
        'created': rfc3339(options.epoch),
        'config': {key: value for key, value in run.items() if value},
        'rootfs': {'type': 'layers', 'diff_ids': [diff_id]},
        'history': [{'created': rfc3339(options.epoch), 'created_by': 'oci.py'}],
    }


def pair(text, what):
    key, equals, value = text.partition('=')
    if not equals or not key:
        raise Refused(f'{what} {text}: KEY=VALUE is wanted')
    return key, value


def add(tar, path, size, file, epoch):
    info = tarfile.TarInfo(path)
    info.size = size
    info.mode = 0o644
    info.mtime = epoch
    tar.addfile(info, file)


def write_archive(options, out):
    with tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(options.output))) as file:
        layer_at, diff_id = layer(options.root, options.epoch, options.compress, file)
        file.seek(0)
        config_data = to_json(config(options, diff_id))
        config_at = blob(CONFIG, config_data)
        manifest_data = to_json({
            'schemaVersion': 2, 'mediaType': MANIFEST, 'config': config_at, 'layers': [layer_at]})
        manifest_at = blob(MANIFEST, manifest_data)
        index = {'schemaVersion': 2, 'mediaType': INDEX, 'manifests': [manifest_at | {
            'platform': platform(options.arch),
            # The first is what containerd goes by, the second everybody else.
            'annotations': {'io.containerd.image.name': options.name,
                            'org.opencontainers.image.ref.name': options.name}}]}
        docker = [{'Config': blob_path(config_at), 'Layers': [blob_path(layer_at)], 'RepoTags': [options.name]}]
        with tarfile.open(fileobj=out, mode='w', format=tarfile.PAX_FORMAT) as tar:
            for path, data in (
                    ('oci-layout', to_json({'imageLayoutVersion': '1.0.0'})),
                    ('index.json', to_json(index)),
                    ('manifest.json', to_json(docker)),
                    (blob_path(config_at), config_data),
                    (blob_path(manifest_at), manifest_data)):
                add(tar, path, len(data), io.BytesIO(data), options.epoch)
            add(tar, blob_path(layer_at), layer_at['size'], file, options.epoch)


def blob_path(descriptor):
    return 'blobs/' + descriptor['digest'].replace(':', '/')


def check(options):
    if not os.path.isdir(options.root):
        raise Refused(f'--root {options.root}: no directory')
    if not NAME.match(options.name):
        raise Refused(f'--name {options.name}: HOST/PATH:TAG is wanted')
    for variable in options.env:
        pair(variable, '--env')


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0], allow_abbrev=False)
    parser.add_argument('--root', required=True, help='what becomes / of the image')
    parser.add_argument('--name', required=True, help='HOST/PATH:TAG, the name it is imported under')
    parser.add_argument('--output', '-o', required=True, help='the archive; replaced only when it is whole')
    parser.add_argument('--arch', default='amd64', help="Go's name of the architecture (amd64, arm64)")
    parser.add_argument('--entrypoint', action='append', default=[], help='repeat it for arguments')
    parser.add_argument('--cmd', action='append', default=[], help='default arguments, one each')
    parser.add_argument('--env', action='append', default=[], metavar='KEY=VALUE')
    parser.add_argument('--label', action='append', default=[], metavar='KEY=VALUE')
    parser.add_argument('--user', default='', help='UID or UID:GID; root where there is none')
    parser.add_argument('--workdir', default='')
    parser.add_argument('--compress', choices=['gzip', 'none'], default='gzip')
    parser.add_argument('--epoch', type=int, default=int(os.environ.get('SOURCE_DATE_EPOCH', '0')),
                        help='seconds since 1970, the time of everything (SOURCE_DATE_EPOCH, or 0)')
    return parser.parse_args(argv)


def main(argv=None):
    options = parse(argv)
    partial = f'{options.output}.{os.getpid()}.partial'
    try:
        check(options)
        with open(partial, 'wb') as out:
            write_archive(options, out)
        os.replace(partial, options.output)
    except (Refused, OSError) as error:
        print(f'oci.py: {error}', file=sys.stderr)
        return 1
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
    return 0


if __name__ == '__main__':
    sys.exit(main())
