#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The fuzzers' inputs: tests/fuzz/corpus/TARGET.tar.gz, one archive a target.

  fuzz-corpus.py unpack TARGET DIR   makes DIR with the target's inputs
  fuzz-corpus.py pack [TARGET...]    takes the files of tests/fuzz/corpus/TARGET/ into the archives (all targets)

A file beside an archive, in tests/fuzz/corpus/TARGET/, is an input as well, and wins over one of its name in the
archive: so what was found can be added by hand, and packed later. The same inputs always make the same archive.
"""
import gzip
import io
import pathlib
import shutil
import sys
import tarfile

CORPUS = pathlib.Path(__file__).resolve().parents[1] / "tests" / "fuzz" / "corpus"
ARCHIVE_BYTES_MAX = 512 << 10  # of any file in the tree


def inputs(corpus, target):
    """Every input by its name."""
    found = {}
    archive = corpus / f"{target}.tar.gz"
    if archive.exists():
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                if not member.isfile() or "/" in member.name:
                    raise ValueError(f"{archive}: {member.name} is no plain file")
                found[member.name] = tar.extractfile(member).read()
    for path in sorted((corpus / target).glob("*")):
        found[path.name] = path.read_bytes()
    return found


def packed(found):
    """The archive's bytes: sorted, without times and owners."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(found):
            member = tarfile.TarInfo(name)
            member.size = len(found[name])
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(found[name]))
    return gzip.compress(plain.getvalue(), mtime=0)


def pack(corpus, target):
    data = packed(inputs(corpus, target))
    if len(data) > ARCHIVE_BYTES_MAX:
        raise ValueError(f"{target}: {len(data)} bytes are more than {ARCHIVE_BYTES_MAX}: leave out what covers nothing new "
                         "(libFuzzer's -merge=1)")
    (corpus / f"{target}.tar.gz").write_bytes(data)
    shutil.rmtree(corpus / target, ignore_errors=True)


def unpack(corpus, target, directory):
    found = inputs(corpus, target)
    if not found:
        raise ValueError(f"{target} has no inputs in {corpus}")
    directory.mkdir(parents=True)
    for name, data in found.items():
        (directory / name).write_bytes(data)


def main(arguments):
    match arguments:
        case ["unpack", target, directory]:
            unpack(CORPUS, target, pathlib.Path(directory))
        case ["pack", *targets]:
            for target in targets or sorted(path.name for path in CORPUS.iterdir() if path.is_dir()):
                pack(CORPUS, target)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as error:
        sys.exit(f"fuzz-corpus: {error}")
