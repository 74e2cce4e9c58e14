#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds that are made by hand into corpus/<target>/seed-*: seeds.py, then scripts/fuzz-corpus.py pack

Inputs the fuzzers found (named by their digest) and those that once failed (fix-*) are in the archives with them.
"""
import hashlib
import pathlib
import re
import struct
import subprocess
import tempfile

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"


def write(target, name, data):
    directory = CORPUS / target
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"seed-{name}").write_bytes(data)


# ---- HTTP/2 ----

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def request(stream, path, body=None, extra=b""):
    block = (b"\x83\x86" + header(b":path", path) + header(b"content-type", b"application/grpc")
             + header(b"te", b"trailers") + extra)
    out = frame(1, 4 if body is not None else 5, stream, block)
    return out + (frame(0, 1, stream, body) if body is not None else b"")


def message(body=b""):
    return b"\0" + struct.pack(">I", len(body)) + body


def h2_bytes():
    probe = request(1, b"/csi.v1.Identity/Probe", message())
    write("h2_bytes", "probe", b"\x01" + probe)
    write("h2_bytes", "preface", b"\x20" + PREFACE + frame(4, 0, 0) + probe)
    write("h2_bytes", "by-one", b"\x23" + probe)
    write("h2_bytes", "echo", b"\x21" + request(1, b"/toy.Toy/Echo", message(b"\n\x05hello"))
          + request(3, b"/toy.Toy/Echo", message(b"\n\x05again"), header(b"grpc-timeout", b"1S")))
    write("h2_bytes", "flood", b"\x31" + request(1, b"/toy.Toy/Flood", message(b"\n\x7f" + 127 * b"x"))
          + frame(8, 0, 0, struct.pack(">I", 1 << 20)) + frame(8, 0, 1, struct.pack(">I", 1 << 20)))
    write("h2_bytes", "chat", b"\x61" + request(1, b"/toy.Toy/Chat", message(b"\n\1a") + message(b"\n\1b")))
    write("h2_bytes", "watch", b"\xe1" + request(1, b"/grpc.health.v1.Health/Watch", message())
          + frame(6, 0, 0, bytes(8)) + frame(3, 0, 1, struct.pack(">I", 8)))
    write("h2_bytes", "reflection", b"\x21" + request(
        1, b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        message(b"\x22\x10csi.v1.Controller") + message(b"\x3a\0")))
    write("h2_bytes", "settings", b"\x21" + frame(4, 0, 0, struct.pack(">HIHI", 1, 0, 4, 100)) + probe
          + frame(7, 0, 0, bytes(8)))


def h2_frames():
    # limits, then operations of the program in fuzz_h2_frames.c
    unary = bytes([0, 0, 0, 0, 2, 1, 0, 5]) + b"hello" + bytes([7, 0])
    write("h2_frames", "echo", b"\0" + unary)
    write("h2_frames", "many", b"\0" + 6 * unary)
    for path in range(16):
        write("h2_frames", f"path-{path:02}",
              b"\1" + bytes([0, 0, 0, path, 2, 1, 0, 5]) + b"hello" + bytes([7, 0, 7, 0x1a, 7, 3, 7, 0]))
    write("h2_frames", "drain", b"\0" + bytes([0, 0, 0, 2, 2, 1, 0, 2]) + b"xx" + bytes([7, 5, 7, 0, 5, 2, 7, 3, 7, 0]))
    write("h2_frames", "flood-reset", b"\0" + bytes([0, 0, 0, 3, 2, 1, 0, 0xc0, 60]) + 60 * b"f"
          + bytes([7, 1, 5, 4, 0, 1, 0, 0, 7, 0, 5, 7, 8, 0, 7, 0]))
    write("h2_frames", "chat", b"\1" + bytes([0, 0, 0, 4, 2, 0xc0, 0, 1]) + b"a" + bytes([1]) + b"b" + bytes([1])
          + b"!" + bytes([7, 0]))


def h2_client():
    # how, then operations of the program in fuzz_h2_client.c
    start, feed = bytes([0, 0, 0]), bytes([6])
    answer = bytes([2, 0, 0, 3, 5, 0]) + b"hello" + bytes([2, 0x41, 0, 2])
    write("h2_client", "echo", b"\0" + start + feed + answer + feed)
    write("h2_client", "by-one", b"\1" + start + feed + answer + feed)
    write("h2_client", "trailers-only", b"\0" + start + feed + bytes([2, 0x44, 0, 0, 1, 3, 4]) + feed)
    write("h2_client", "http-error", b"\0" + start + feed + bytes([2, 2, 0, 5, 6, 3, 0xa5, 0]) + b"<hm>!" + feed)
    write("h2_client", "held", b"\0" + bytes([0, 0, 1]) + feed + bytes([2, 0, 0, 3, 0x45, 0]) + b"hello"
          + bytes([2, 0x41, 0, 2]) + feed + bytes([0, 3]) + feed + bytes([0, 4, 0, 3]) + feed)
    write("h2_client", "chat", b"\0" + bytes([0, 0, 16, 0, 6, 9, 0, 5, 99]) + feed + bytes([2, 0, 0, 3, 1, 0]) + b"a"
          + feed + bytes([0, 7]) + feed + bytes([2, 0x41, 0, 2]) + feed)
    write("h2_client", "gives-up", b"\0" + bytes([0, 0, 2]) + feed + answer + feed)
    write("h2_client", "another", b"\0" + bytes([0, 0, 4]) + feed + answer + feed + bytes([2, 0, 1, 3, 1, 1]) + b"b" + feed)
    write("h2_client", "deadline", b"\0" + bytes([0, 0, 8]) + feed + bytes([7, 20]) + feed)
    write("h2_client", "silence", b"\0" + start + feed + bytes([7, 60, 7, 120]) + feed)
    write("h2_client", "idle", b"\0" + bytes([7, 255, 7, 255, 7, 255]) + feed)
    for code in (0, 1, 7, 8, 11):
        write("h2_client", f"reset-{code}", b"\0" + start + feed + bytes([4, 0, 0, 0, 0, 0, code]) + feed)
    write("h2_client", "goaway", b"\0" + start + feed + bytes([4, 1, 0, 0, 0, 1, 0, 0, 0, 0]) + feed + answer + feed)
    write("h2_client", "goaway-0", b"\0" + start + feed + bytes([4, 1, 0, 0, 0, 0, 0, 0, 0, 0]) + feed)
    write("h2_client", "no-streams", b"\0" + bytes([4, 2, 0, 3, 0, 0, 0, 0]) + feed + start + feed
          + bytes([4, 2, 0, 3, 0, 0, 0, 9]) + feed + answer + feed)
    window = bytes([0x7f, 0, 0, 0])
    write("h2_client", "choked", b"\0" + bytes([0, 0, 16, 0, 5, 255, 0, 5, 255]) + feed + bytes([4, 0x0b]) + window
          + bytes([4, 3, 0]) + window + 12 * feed + bytes([0, 7]) + feed + answer + feed)
    write("h2_client", "ungreeted", b"\x08" + start + bytes([5, 20]) + b"HTTP/1.1 400 Bad Req" + feed)
    write("h2_client", "little-memory", b"\4" + 4 * bytes([0, 0, 0x70]) + feed + answer + feed)


# ---- text ----

def records():
    body = (b"ringvol-record 1\nkind=volume\nname=pvc-0a1b\nrandom=0badcafe\nsize_bytes=1073741824\n"
            b"created_ns=1795183200123456789\nfs=ext4\nblock_size=4096\nthick=true\ndevice=1\nerase=zero\n"
            b"snapshot_freeze=true\nmkfs_options=-m 1 %25\nsource=snapshot\n"
            b"source_id=01234567.snap.89abcdef\nshares_extents=true\nfamily=01234567.golden.00000000\n")
    write("record", "whole", b"\0" + body + b"sum=" + hashlib.sha256(body).hexdigest()[:16].encode() + b"\n")
    write("record", "unsummed", b"\1" + body)
    write("record", "encrypted", b"\1" + body + b"encryption=luks2\nunformatted=true\n")
    write("record", "short", b"\1" + b"ringvol-record 1\nkind=snapshot\nname=x\n")
    for i, name in enumerate([b"pvc-1", b"..", b"a/b", b"a" * 64, "\u20ac\n%".encode(), b"=" + b"0" * 40]):
        write("record", f"name-{i}", b"\2" + name)
    for i, text in enumerate([b"01234567.used.0badcafe", b"01234567.=" + b"0" * 40 + b".0badcafe", b"01234567.a..b.0badcafe"]):
        write("record", f"id-{i}", b"\3" + text)


def image_map():
    body = b"ringvol-map 1\n40000000 100000\n0 300000\nabc00000 1000000\n"
    write("image_map", "whole", b"\0" + body + b"sum=" + hashlib.sha256(body).hexdigest()[:16].encode() + b"\n")
    write("image_map", "empty", b"\1" + b"ringvol-map 1\n")
    write("image_map", "later", b"\1" + b"ringvol-map 3\nthin 7\n")
    write("image_map", "thin", b"\1" + b"ringvol-map 2\nthin=7f\n")
    for i, lines in enumerate([body[14:], b"100000 100000\n200000 100000\n", b"100000 300000\n200000 100000\n",
                               b"fffffffffff00000 100000\n", b"0100000 100000\n", b"100000 0\n", b"100000 100000"]):
        write("image_map", f"lines-{i}", b"\1" + b"ringvol-map 1\n" + lines)
    # image, argument, operation of the program in fuzz_image_map.c
    write("image_map", "takes", b"\2" + bytes(n for i in range(12) for n in (i % 6, 100, 0)))
    write("image_map", "gives", b"\2" + bytes(n for i in range(9) for n in (i % 6, 40, 0, (i + 3) % 6, 7, 1, i % 6, 9, 2)))


def thin():
    write("thin", "status", b"\0" + b"0 11/4096 3/1000 - rw no_discard_passdown queue_if_no_space - 1024 ")
    write("thin", "status-full", b"\0" + b"7 11/4096 1000/1000 - out_of_data_space no_discard_passdown error_if_no_space needs_check 1024 ")
    write("thin", "status-failed", b"\0" + b"Fail")
    write("thin", "volume", b"\1" + b"256 1023")
    write("thin", "volume-empty", b"\1" + b"0 -")
    write("thin", "table", b"\2" + b"254:3 254:4 128 1024 2 no_discard_passdown error_if_no_space ")
    # Nodes of the program in fuzz_thin.c: block, kind (1: a leaf, 2: of details, 4: of mappings), pairs.
    def node(number, kind, *pairs):
        return bytes([1, number - 1, kind, len(pairs), *(n for pair in pairs for n in pair)])
    details = node(1, 0, (1, 2), (4, 3)) + node(2, 3, (1, 0), (2, 9)) + node(3, 3, (5, 1), (9, 0))
    mappings = node(4, 1, (1, 5), (2, 6)) + node(5, 5, (0, 7), (3, 8)) + node(6, 1)
    write("thin", "trees", b"\3" + bytes([1, 4, 64]) + details + mappings)
    write("thin", "ring", b"\3" + bytes([1, 4, 64]) + node(1, 0, (1, 1)) + mappings)
    write("thin", "spoilt", b"\3" + bytes([1, 4, 64]) + details + mappings + bytes([0, 3, 16, 0, 200, 1]))


def disk_header():
    def lines(disk, rest):
        return b"ringvol-disk 1\npool=5f1e0000-0000-4000-8000-00000000001a\ndisk=" + disk + b"\n" + rest
    one, two = b"d15c0000-0000-4000-8000-000000000001", b"d15c0000-0000-4000-8000-000000000002"
    body = lines(one, b"count=2\nsize=67108864\noffset=11534336\nbytes=54525952\nrecords-offset=1048576\n"
                 b"records-bytes=10485760\ngeneration=7\nowner=node-1\nowner-machine=0123456789abcdef\n"
                 b"owner-since=1795460857498858330\nmember=" + one + b"\nmember=" + two + b"\n")
    write("disk_header", "whole", b"\0" + body + b"sum=" + hashlib.sha256(body).hexdigest()[:16].encode() + b"\n")
    write("disk_header", "first", b"\1" + body)
    write("disk_header", "growing", b"\1" + body.replace(b"owner=", b"state=growing\nowner="))
    write("disk_header", "second", b"\1" + lines(
        two, b"index=1\nsize=67108864\nstart=281474976710656\noffset=1048576\nbytes=65011712\ngeneration=2\n"))
    write("disk_header", "later", b"\1" + b"ringvol-disk 2\nthin=1\n")
    write("disk_header", "place", b"\2" + lines(one, b"device=/dev/sdb\n"))


def serve_flags():
    """The flags of `ringvol serve` in the order of its table."""
    app = CORPUS.parents[2] / "src/app"
    table = (app / "serve_options.c").read_text()
    shared = "\n".join(re.findall(r'\{\s*(?:\\\s*)?"(--tls-[a-z-]+)"', (app / "tls_options.h").read_text()))
    table = re.sub(r"^\tTLS_OPTION_ROWS.*", lambda _: "\n".join(f'\t{{"{flag}"' for flag in shared.split()), table, flags=re.MULTILINE)
    return re.findall(r'^\t\{"(--[a-z-]+)"', table, re.MULTILINE)


# A good value of each, by flag, in the order of the table. A flag that takes none has "true".
SERVE_VALUES = {
    "--endpoint": "unix:///run/x.sock", "--insecure-tcp": "true", "--driver-name": "a.b", "--node-id": "n1",
    "--topology": "topology.kubernetes.io/zone=z1", "--pool": "a=/a,init", "--services": "node,controller", "--http": "[::]:9808",
    "--controller": "controller.example:9444", "--listen": "127.0.0.1:9444", "--advertise": "node.example:9444",
    "--tls-cert": "/tls/tls.crt", "--tls-key": "/tls/tls.key", "--tls-ca": "/tls/ca.crt", "--target-root": "/kubelet",
    "--kubelet-registration": "/registry", "--kubelet-endpoint": "/plugins/x.sock", "--controller-expand": "node", "--inline": "pools=default,namespaces=*,sources=root,max-size=1Gi,iops=5k,bandwidth=1Mi", "--attach": "true", "--export-address": "192.0.2.1:4420",
    "--export-without-auth": "true", "--export-tls": "true", "--staging": "off",
    "--csi-version": "1.13", "--max-volumes-per-node": "9", "--trim-interval": "12h", "--owner-timeout": "90s", "--owner-fail-after": "30s", "--transfer-rate": "1000000",
    "--ublkd": "external", "--ublkd-socket": "/run/u.sock", "--ublkd-state-dir": "/run/u", "--cgroup-root": "/cg",
    "--block-on-loop": "true", "--docker-plugin": "/run/d.sock", "--docker-mounts": "/run/d", "--storage-provider": "/run/s", "--storage-provider-mounts": "/run/m", "--storage-provider-idle": "9", "--log-level": "warn",
    "--log-format": "json"}


def options():
    write("options", "serve", b"\0--pool\nfast=/srv/fast,overcommit=2.5,reserve=10,init\n--pool=b=/b\n"
          b"--endpoint\nunix:///run/x.sock\n--node-id\nn1\n--log-level=debug\n--csi-version\n1.13")
    write("options", "services", b"\0--services\nidentity,node\n--insecure-tcp\n--endpoint=tcp://127.0.0.1:9000\n"
          b"--controller-expand=node\n--max-volumes-per-node=100\n--driver-name=a.b-c.example")
    write("options", "none", b"\0--pool\nnone\n--services\nidentity,controller")
    write("options", "none-and-one", b"\0--pool\nnone\n--pool\nb=/b")
    # Every option that there is, by its place in the table and by its name.
    flags, values = serve_flags(), SERVE_VALUES
    assert flags == list(values), "the table of serve_options.c has other options than SERVE_VALUES"
    lines = [bytes([i + 2 * len(values)]) + v.encode() for i, v in enumerate(values.values())]
    assert not any(b"\n" in line for line in lines)
    write("options", "serve-every-value", b"\1" + b"\n".join(lines))
    write("options", "serve-every-flag", b"\0" + "\n".join(
        f if v == "true" else f"{f}={v}" for f, v in values.items()).encode())
    longest = [("--kubelet-endpoint", 106), ("--ublkd-socket", 106), ("--kubelet-registration", 81)]
    for name, more in [("long", 0), ("too-long", 1)]:
        lines = [bytes([flags.index(f) + 2 * len(flags)]) + b"/" + (n + more) * b"x" for f, n in longest]
        write("options", f"serve-{name}-paths", b"\1" + b"\n".join(lines))
        for line, (flag, _) in zip(lines, longest):
            write("options", f"serve-{name}{flag[1:]}", b"\1" + line)
    write("options", "wrong", b"\0--pol\nx\n--help")
    for kind, texts in {1: [b"-m 1 -O ^has_journal,^64bit", b"-E stride=16,lazy_itable_init=1 -b 4096 -i 16384 -T small -J size=4"],
                        2: [b"-d agcount=4,su=64k -i size=512 -m reflink=1,rmapbt=0", b"-l size=16m -n ftype=1"],
                        3: [b"--csum xxhash -d single -m dup -O no-holes", b"--mixed -n4096"], 0: [b" ", b"x"]}.items():
        for i, text in enumerate(texts):
            write("options", f"mkfs-{kind}-{i}", bytes([4 * kind + 2]) + text)
    for kind, texts in {1: [b"noatime", b"data=writeback", b"bind", b"commit=5"], 2: [b"logbsize=64k", b"logdev=x"],
                        3: [b"compress=zstd:3", b"subvol=x", b"discard=async"]}.items():
        for i, text in enumerate(texts):
            write("options", f"mount-{kind}-{i}", bytes([4 * kind + 3]) + text)


def mountinfo():
    write("mountinfo", "usual", b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
          b"36 22 7:4 / /pods/a\\040b rw,noatime shared:1 master:2 - ext4 /dev/loop4 rw\n"
          b"37 22 0:5 /loop4 /pods/raw ro - devtmpfs udev rw,size=4k\n"
          b"38 22 0:40 / /b ro,x - btrfs /dev/loop5 rw,ro\n")
    write("mountinfo", "short", b"36 22 7:4 /\n\n- - - -\n1 2 x:y / / rw - a b c\n")


def fsimg():
    made = {}
    for place, kind, args, at, size in [(0, "ext4", ["mkfs.ext4", "-q", "-F"], 1024, 1024),
                                        (1, "xfs", ["mkfs.xfs", "-q", "-f"], 0, 512),
                                        (2, "btrfs", ["mkfs.btrfs", "-q", "-f"], 65536, 4096)]:
        with tempfile.NamedTemporaryFile() as image:
            image.truncate(320 << 20)
            subprocess.run(args + [image.name], check=True)
            image.seek(at)
            made[kind] = place, image.read(size)
            write("fsimg", kind, bytes([place | 8]) + made[kind][1])
    # Two on one image: neither tool would leave the other's, but a tenant may.
    for one, other in [("ext4", "xfs"), ("ext4", "btrfs"), ("xfs", "btrfs")]:
        (place, first), (second_place, second) = made[one], made[other]
        write("fsimg", f"{one}-{other}", bytes([place | 8 | 0x10, second_place])
              + struct.pack(">H", len(first)) + first + second)
    place, first = made["ext4"]
    for name, second_place, second in [
            ("mbr", 3, bytes(14) + b"\x80\0\0\0\x83" + bytes(59) + b"\x55\xaa"), ("luks", 1, b"LUKS\xba\xbe\0\1aes")]:
        write("fsimg", f"ext4-{name}", bytes([place | 8 | 0x10, second_place])
              + struct.pack(">H", len(first)) + first + second)
    write("fsimg", "mbr", bytes([3 | 8]) + bytes(14) + b"\x80\0\0\0\x83" + bytes(59) + b"\x55\xaa")
    write("fsimg", "swap", bytes([1 | 4]) + bytes(4086) + b"SWAPSPACE2")
    write("fsimg", "luks", bytes([1 | 4]) + b"LUKS\xba\xbe\0\1aes")


METHODS = [(0, 17), (1, 10), (2, 3)]  # of Controller, Node, Identity


def csi():
    # Built requests: which service, which method, then choices; see fuzz_csi.c. And raw ones.
    for service, count in METHODS:
        for method in range(count):
            filler = bytes((7 * i + 131 * method) % 256 for i in range(90))
            write("csi", f"{service}-{method:02}", b"\0\x08" + bytes(8) + bytes([service, method]) + filler)
    # Sound ones: what an input that has ended gives is right. Each alone, two at once, one after the other.
    for service, count in METHODS:
        for method in range(count):
            call = bytes([0x40 + (service + 2) % 3, method])
            write("csi", f"sound-{service}-{method:02}", b"\0\x00" + call)
            pad = bytes(64)
            write("csi", f"sound-twice-{service}-{method:02}", b"\0\x10" + bytes(16) + 2 * (call + pad))
            write("csi", f"sound-again-{service}-{method:02}", b"\x02\x10" + bytes(16) + 2 * (call + pad + b"\7" * 8))
    # What goes further than all being well: answers of the world (csi_world.c), then one sound call.
    ids = ["used", "raw", "copy", "gone", "broken", "frozen", "busy", "served"]
    paths = ["/stage/used", "/stage/new", "/stage/frozen"]
    block, mount = b"\0\1\0", b"\0\0\0"  # of an access type's two choices
    unmounted = 0x10

    def steps(name, answers, service, method, choices, how=0):
        call = bytes([0x40 + (service + 2) % 3, method])
        write("csi", f"steps-{name}", bytes([how, len(answers)]) + bytes(answers) + call + choices)

    def volume(name):
        return bytes([0, ids.index(name)])

    def stage(name, volume_name, answers, path="/stage/new", access=mount):
        steps(f"stage-{name}", answers, 1, 0, volume(volume_name) + b"\0\0" + bytes([0, paths.index(path)]) + access)

    def publish(name, volume_name, answers, access=mount):
        steps(f"publish-{name}", answers, 1, 2, volume(volume_name) + b"\0\0" + b"\0\0" + b"\0\0" + access)

    stage("grow", "copy", [unmounted])
    stage("mend", "used", [unmounted, 0, 8], "/stage/used")
    stage("held", "used", [unmounted, 0, 8, 0, 0xc1], "/stage/used")
    stage("in-use", "copy", [unmounted, 0, 0, 0, 0xc0, 0x80])
    stage("tools", "used", [unmounted, 0, 0xc1, 0xc1, 0])
    stage("elsewhere", "used", [unmounted, 1, 0])
    stage("retag", "served", [unmounted, 0, 0x10])
    stage("damaged", "copy", [unmounted, 0, 0xf0])
    stage("attach-fails", "copy", [unmounted, 0, 0, 0xe1])
    stage("mount-fails", "copy", [unmounted, 0, 0, 0, 0xc3])
    stage("block", "raw", [unmounted], access=block)
    publish("bind", "used", [0, unmounted])
    publish("bind-fails", "used", [0, unmounted, 0xc1])
    publish("block", "busy", [0, 3], access=block)
    publish("mode", "busy", [0x41, 1], access=block)
    steps("unstage-owner", [0x80, 1, 0], 1, 1, volume("used") + b"\0\0")
    steps("unstage-others", [0, 0], 1, 1, volume("frozen") + b"\0\2")
    steps("delete-attached", [1, 0], 0, 1, volume("used"))
    steps("delete-forgotten", [0], 0, 1, volume("busy"))
    steps("expand-node", [0], 1, 7, volume("used") + b"\0\0")
    steps("expand-node-size", [0, 2], 1, 7, volume("used") + b"\0\0" + b"\0\0\2")
    for name, answers in [("well", []), ("freeze-fails", 7 * [0] + [0xc0]), ("overstays", 7 * [0] + [0xc2]),
                          ("marked", [0, 0, 0, 0x80]), ("moved", [0, unmounted, 1, 1])]:
        for how, source in [(0, 3), (0x20, 3), (0x20, 0), (0x20, 4)]:
            # CreateSnapshot
            steps(f"snapshot-{name}-{how:02x}-{source}", answers, 0, 10, bytes([0, source]), how)
    for volume_name in ids[:1] + ids[5:]:
        steps(f"health-{volume_name}", [], 1, 5, volume(volume_name), 0x10)
    steps("stats-many", [], 1, 4, volume("used") + b"\0\0\0\0" + b"\0" + bytes([0x40, 4]) + volume("frozen") + b"\0\2")
    steps("stats-served", [], 1, 4, volume("served") + b"\0\0\0\0")
    steps("create-served", [], 0, 0, b"\0\0" + b"\0\0" + b"\0" + 2 * b"\0" + b"\xb0\1\1")
    steps("health-gone", [0xe0], 1, 5, volume("used"), 0x10)
    name = b"\n\3new"
    capability = b"\x1a\x08\x12\0\x1a\2\x08\1"
    raw = name + capability
    write("csi", "raw-create", b"\0\0" + bytes([0x81, 0, 0, len(raw)]) + raw)


# ---- what docker asks of a volume plugin ----


def docker():
    """The first byte is the verb, in the order of src/docker/request.h."""
    write("docker", "activate", b"\0")
    write("docker", "create", b'\2{"Name":"data","Opts":{"size":"1Gi","fsType":"xfs","pool":"default"}}')
    write("docker", "create-plain", b'\2{"Name":"data","Opts":null}')
    write("docker", "remove", b'\3{"Name":"data"}')
    write("docker", "mount", b'\4{"Name":"data","ID":"b87d7442095999a92b65b3d9691e697b61713829cc0ffd1bb72e4ccd51aa4d6c"}')
    write("docker", "unmount", b'\5{"ID":"b87d","Name":"d.a-t_a","Later":[1,2,{"x":null}]}')
    write("docker", "path", b'\6{"Name":"\\u0064ata"}')
    write("docker", "list", b"\x08{}")


# ---- what systemd asks of a provider of storage ----


def provider():
    """The first byte is how bytes come; then calls, each with its NUL. The methods are those of varlink_peer.h."""
    acquire = b'{"method":"a","parameters":{"name":"data","createMode":"new","template":"xfs","readOnly":false,"requestAs":"dir","createSizeBytes":1}}\0'
    write("provider", "acquire", b"\0" + acquire)
    write("provider", "pieces", b"\3" + acquire + b'{"method":"fd"}\0{"method":"later","oneway":true}\0')
    write("provider", "many", b'\0{"method":"many9","more":true}\0{"method":"many0","more":true}\0{"method":"many2999","more":true}\0')
    write("provider", "later", b'\x28{"method":"later"}\0{"method":"fd"}\0{"method":"a"}\0')
    write("provider", "drain", b'\x11{"method":"a","parameters":{"name":"\\u0064","readOnly":true}}\0{"method":"later"}\0{"method":"a"}\0')


# ---- HTTP/1 ----


def http1():
    def get(path, version=b"1.1", more=b"Host: a\r\n"):
        return b"GET " + path + b" HTTP/" + version + b"\r\n" + more + b"\r\n"

    write("http1", "get", b"\0" + get(b"/text"))
    write("http1", "pieces", b"\3" + get(b"/text?x") + get(b"http://a/text"))
    write("http1", "pipelined", b"\x48" + get(b"/body") + get(b"/slow") + get(b"/seldom") + get(b"/none"))
    write("http1", "old", b"\0" + get(b"/body", b"1.0", b"Connection: keep-alive\r\n"))
    write("http1", "head", b"\0" + get(b"/body").replace(b"GET", b"HEAD") + get(b"/text"))
    write("http1", "fail", b"\x08" + get(b"/fail"))
    write("http1", "body", b"\0" + get(b"/text", more=b"Host: a\r\nTransfer-Encoding: chunked\r\n") + b"3\r\nabc\r\n0\r\n\r\n")
    write("http1", "length", b"\0" + get(b"/text", more=b"Host: a\r\nContent-Length: 3\r\n") + b"abc")
    write("http1", "upgrade", b"\0" + get(b"/text", more=b"Host: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"))
    write("http1", "h2", b"\0" + PREFACE)
    write("http1", "late", b"\xa2" + get(b"/text") + get(b"/slow")[:-3])
    post = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
    write("http1", "post", b"\0" + post + post.replace(b"echo", b"later") + get(b"/text"))
    write("http1", "post-chunks", b"\1" + post.replace(b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"))
    write("http1", "drain", b"\x17" + get(b"/text") + get(b"/body") + get(b"/text"))


# ---- TLS ----


def tls():
    # What the first byte says: fuzz_tls.c.
    hello, second, drain, late, client = 8, 16, 32, 64, 128

    def record(kind, body, version=b"\3\3"):
        return bytes([kind]) + version + struct.pack(">H", len(body)) + body

    change, alert, empty = record(20, b"\1"), record(21, b"\2\x28"), record(22, b"")
    server_hello = b"\2\0\0\x4e\3\3" + bytes(32) + b"\0\x13\1\0\0\x2e" \
        + b"\0\x2b\0\2\3\4" + b"\0\x33\0\x24\0\x1d\0\x20" + bytes(range(32))
    retry = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
    write("tls", "hello", bytes([hello]))
    write("tls", "hello-by-one", bytes([hello | 1]))
    write("tls", "good", bytes([hello | second]))
    write("tls", "good-by-three", bytes([hello | second | 3]))
    write("tls", "good-then-dust", bytes([hello | second]) + bytes(6000) + record(23, b"dust" * 10))
    write("tls", "good-then-drain", bytes([hello | second | drain]))
    for at in (0, 3, 4, 5, 40, 300, 700):
        write("tls", f"changed-{at}", bytes([hello | second]) + bytes(at) + b"\1")
    write("tls", "half", bytes([hello | late]) + change + record(23, bytes(40))[:20])
    write("tls", "change", bytes([hello]) + change * 50)
    write("tls", "alert", bytes([hello]) + alert)
    write("tls", "warning", bytes([hello]) + record(21, b"\1\x5a") * 8)
    write("tls", "empty", bytes([hello]) + empty * 3)
    write("tls", "raw", bytes([6]) + record(22, b"\1\0\0\x26\3\3" + bytes(32) + b"\0\0\2\x13\1\1\0", b"\3\1"))
    write("tls", "long", b"\0" + b"\x16\3\1\xff\xff" + bytes(100))
    write("tls", "http", b"\0GET / HTTP/1.1\r\n\r\n")
    write("tls", "h2", b"\0" + PREFACE)
    write("tls", "silent", bytes([late]))
    write("tls", "server", bytes([client]) + record(22, server_hello) + change + record(23, bytes(100)))
    write("tls", "server-again", bytes([client]) + record(22, server_hello.replace(bytes(32), retry, 1)))
    write("tls", "server-old", bytes([client]) + record(22, server_hello.replace(b"\3\4", b"\3\3")))
    write("tls", "server-alert", bytes([client]) + alert)
    write("tls", "server-silent", bytes([client | late]))


# ---- the data process ----


def ublkd():
    # Choices in the order in which fuzz_ublkd.c makes them.
    def record(phase=1, size=b"\0", image=0, damage=b"\3"):
        return bytes([phase, image, 0]) + size + bytes([0, 0, image, 1, 1 + image, 8 + image]) + damage

    def packet(kind, named=1, length=0, descriptors=0, image=0, block=0, path=8):
        return bytes([5, kind, 7, 0, block, 0, 0, 0, image, 1, 1 + image, path, named, length, descriptors])

    hello, attach, detach, resize, listing, settle = 0, 1, 2, 3, 4, b"\2"
    good = packet(attach, descriptors=1)
    write("ublkd", "empty", b"\0")
    write("ublkd", "life", b"\0\0" + packet(hello) + good + settle + packet(listing) + packet(resize, 0)
          + good + packet(detach, 0) + settle + packet(detach, 0))
    write("ublkd", "recover", b"\0\2" + record() + record(image=1) + settle + packet(listing) + packet(detach, 0))
    write("ublkd", "unfinished", b"\0\2" + record(0) + record(2, image=1) + settle)
    write("ublkd", "no-block-size", b"\0\1" + record(size=b"\2\0\0\0\0") + settle)
    write("ublkd", "damaged", b"\0\2" + record(damage=b"\1" + bytes(range(16)) + b"\x10") +
          record(image=1, damage=b"\2" + bytes(32) + b"\0\7") + settle)
    write("ublkd", "out-of-sight", b"\0\1" + record()[:-2] + b"\0\3" + settle + good + settle)
    write("ublkd", "held", b"\4\0\0\0\xf0\0" + good + settle + packet(listing) + good + b"\0" + settle)
    write("ublkd", "refused", b"\5\0\xc0\xc1\xc5\xc6\0" + good + settle + good + settle)
    write("ublkd", "many-descriptors", b"\0\0" + packet(attach, descriptors=7) + packet(hello, descriptors=6))
    write("ublkd", "short", b"\0\0" + b"".join(packet(attach, length=n, descriptors=1) for n in range(8)))
    write("ublkd", "nothing-but-descriptors", b"\0\0" + b"\4\0\1" + b"\2")
    write("ublkd", "raw", b"\0\0\4\x10rvbk" + bytes(12) + b"\0\x84\0\0" + b"\1\x81" + settle)


# ---- copies between nodes ----


def chunk():
    data = bytes(4096)
    head = b"\x08\x80\x40" + b"\x1d" + struct.pack("<I", 0x60e4f38a) + b"\x12\x80\x20"
    write("chunk", "data", b"\0" + head + data)
    write("chunk", "behind", b"\1" + head + data)
    write("chunk", "end", b"\0\x08\x80\x80\x80\x20\x20\x01")
    write("chunk", "short", b"\0" + head + data[:100])
    write("chunk", "fields", b"\2\0\0\x20\0\x05abcd\0" + bytes(100))


# ---- orders of the child with the keys ----


def luks_order():
    def order(what, key, flags=0, sector=4096, path=b"/dev/loop0"):
        head = b"RVLUKS1\0" + struct.pack("<6I", what, flags, sector, 7, 0, len(key))
        return (head + path.ljust(64, b"\0") + b"name".ljust(128, b"\0") + b"uuid").ljust(384, b"\0") + key

    write("luks_order", "open", order(1, b"k" * 32, 7))
    write("luks_order", "grow", order(2, b"", 0, 512))
    write("luks_order", "no-key", order(1, b""))
    write("luks_order", "no-end", order(1, b"key", path=b"/" * 64))


# ---- what nodes tell a controller ----


def varint(n):
    out = b""
    while n >= 0x80:
        out += bytes([n & 0x7f | 0x80])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def node():
    def message(how, report):
        return bytes([how]) + struct.pack(">H", len(report)) + report

    def hello(name, instance=b"1", roster=b""):
        segment = field(1, b"topology.ringvol.dev/node") + field(2, name)
        return field(1, field(1, name) + field(2, b"csi.ringvol.dev") + field(3, b"1") + field(4, instance)
                     + field(5, b"10.0.0.1:9444") + field(6, segment) + roster)

    def pool(digit, state=1, gone=0):
        return field(2, field(1, b"default") + field(2, digit * 32) + field(3, state) + field(5, 1 << 30) + field(6, gone))

    def volume(name, health=False):
        told = field(2, name) + field(3, field(1, field(1, 1 << 30) + field(2, name)) + field(2, field(1, b"n1")))
        return field(3, told + (field(4, field(1, name) + field(2, field(2, b"Lost"))) if health else b""))

    def snapshot(name, source):
        return field(3, field(1, 1) + field(2, name) + field(3, field(1, field(2, name) + field(3, source))) + field(5, source))

    a1, a2, b1 = b"aaaaaaaa.v1.00000001", b"aaaaaaaa.v2.00000001", b"bbbbbbbb.v1.00000002"
    s1, synced = b"aaaaaaaa.s1.00000003", field(5, 1)
    life = message(0, hello(b"n1")) + message(0, pool(b"a")) + message(4, volume(a1) + volume(a2, True) + snapshot(s1, a1))
    write("node", "life", life + message(4, synced) + message(4, field(4, a1) + volume(a2)))
    write("node", "again", life + message(0, synced) + message(2, hello(b"n1", b"2") + pool(b"a") + volume(a2))
          + message(4, synced))
    write("node", "two", life + message(1, hello(b"n2") + pool(b"b") + pool(b"a") + volume(b1) + volume(a1))
          + message(4, pool(b"a", 2)) + message(5, pool(b"a")) + message(4, pool(b"a", 1, 1)))
    write("node", "roster", message(4, hello(b"n1", roster=field(7, field(1, b"n2") + field(2, b"cccccccc"))))
          + message(5, hello(b"n2") + pool(b"c") + synced))
    names = field(6, field(2, b"v9")) + field(6, field(1, 1) + field(2, b"v9"))
    write("node", "names", life + message(1, hello(b"n2") + names) + message(4, names) + message(5, field(8, field(2, b"v9"))))
    capacity = field(7, field(1, 64) + field(2, field(1, 1 << 40) + field(2, field(1, 1 << 30))))
    write("node", "capacity", message(0, hello(b"n1")) + message(4, capacity))
    write("node", "one-id", life + message(5, hello(b"n1", b"2")) + message(5, hello(b"n1")))


if __name__ == "__main__":
    chunk()
    luks_order()
    node()
    http1()
    docker()
    provider()
    tls()
    ublkd()
    h2_bytes()
    h2_frames()
    h2_client()
    records()
    image_map()
    thin()
    disk_header()
    options()
    mountinfo()
    fsimg()
    csi()
