# SPDX-License-Identifier: Apache-2.0
"""One QEMU guest: starts it, passes its output on, starts it again when it does not come up.

The kernel's console is kept as a log. What the command says comes over virtio-serial ports, one
each for standard output, standard error, status and the archive; a port is at its end when the
token was seen, which is random and new for each guest. Nothing is retried once the command runs.
"""
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import time

PORTS = ("out", "err", "status", "archive")
SILENCE_S = 10
STARVED_S = 60  # on a busy machine
ATTEMPTS = 3


class Failed(Exception):
    """The guest did not get to the end of the command."""


class TimedOut(Failed):
    """The command ran longer than it may."""


class Stream:
    """Passes bytes on to a sink up to the token, which may come in pieces."""

    def __init__(self, sink, token):
        self.sink = sink
        self.token = token
        self.held = b""
        self.ended = False
        self.any = False

    def feed(self, data):
        data = self.held + data
        self.held = b""
        end = data.find(self.token)
        if end >= 0:
            data, self.ended = data[:end], True
        else:
            for length in range(min(len(self.token) - 1, len(data)), 0, -1):
                if self.token.startswith(data[-length:]):
                    data, self.held = data[:-length], data[-length:]
                    break
        if data:
            self.any = True
            self.sink(data)


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Guest:
    """kernel, initrd: files; disks: (file, serial or None, read-only) in the order of /dev/vda...;
    parallel: its two CPUs run at once, not in turns; counted: its clock is the count of its instructions;
    selinux: the kernel has SELinux, enforcing, and no policy yet."""

    def __init__(self, kernel, initrd, disks, token, console, archive, parallel, counted, selinux, memory):
        self.arguments = arguments(kernel, initrd, disks, parallel, counted, selinux, memory)
        self.token = token
        self.console_path = console
        self.archive = archive
        self.retries = 0
        self.up_s = None
        self.first_output = None  # time.monotonic()
        self.process = None

    def run(self, timeout_s):
        """Returns the command's exit status."""
        while True:
            try:
                return self.attempt(timeout_s)
            except Silent as error:
                if self.retries + 1 == ATTEMPTS:
                    raise Failed(f"no guest came up in {ATTEMPTS} attempts: {error}") from error
                self.retries += 1
                say(f"{error}, trying again ({self.retries})")
            finally:
                self.kill()

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def attempt(self, timeout_s):
        pairs = {name: socket.socketpair() for name in PORTS}
        command = list(self.arguments)
        for name, (_, theirs) in pairs.items():
            command += ["-chardev", f"socket,id={name},fd={theirs.fileno()}",
                        "-device", f"virtserialport,chardev={name},name=vm.{name}"]
        begin = time.monotonic()
        # A session of its own: ^C is for us, and we end it.
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno() for _, theirs in pairs.values()], start_new_session=True,
            preexec_fn=die_with_parent)
        selector = selectors.DefaultSelector()
        with selector, self.process.stdout as serial, open(self.console_path, "wb") as console:
            for _, theirs in pairs.values():
                theirs.close()
            selector.register(serial, selectors.EVENT_READ, "console")
            for name, (ours, _) in pairs.items():
                selector.register(ours, selectors.EVENT_READ, name)
            try:
                return self.watch(selector, console, begin, timeout_s)
            finally:
                for ours, _ in pairs.values():
                    ours.close()

    def watch(self, selector, console, begin, timeout_s):
        streams = {"out": Stream(self.emit(1), self.token), "err": Stream(self.emit(2), self.token),
                   "archive": Stream(self.archive, self.token)}
        said, status, code, started = b"", b"", None, False
        heard, deadline = (begin, 0.0), begin + SILENCE_S
        while code is None or not all(s.ended for s in streams.values()):
            left_s = deadline - time.monotonic()
            events = selector.select(left_s) if left_s > 0 else []
            if not events:
                if started:
                    raise TimedOut(f"the command did not end within {timeout_s} s")
                if not self.hangs(heard):
                    deadline = time.monotonic() + 1
                    continue
                raise Silent(f"the guest said nothing for {time.monotonic() - heard[0]:.0f} s")
            for key, _ in events:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    raise self.ended(started, console)
                if key.data == "console":
                    console.write(data)
                    console.flush()
                    said = (said + data)[-4096:]
                    if self.up_s is None and b"vm: up" in said:
                        self.up_s = time.monotonic() - begin
                elif key.data == "status":
                    status += data
                    lines = status.split(b"\n")[:-1]
                    if b"start" in lines and not started:
                        started, deadline = True, time.monotonic() + timeout_s
                    code = next((int(line[5:]) for line in lines if line.startswith(b"exit ")), code)
                else:
                    streams[key.data].feed(data)
                if not started:
                    heard = time.monotonic(), self.cpu_s()
                    deadline = heard[0] + SILENCE_S
        return code

    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii", errors="replace") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def hangs(self, heard):
        """A guest that hangs spins or sleeps; one that is slow because the machine is busy does
        neither: a boot takes about five seconds of CPU, however long they take."""
        wall_s, cpu_s = time.monotonic() - heard[0], self.cpu_s() - heard[1]
        return cpu_s >= SILENCE_S or cpu_s < 0.05 * wall_s or wall_s >= STARVED_S

    def emit(self, fd):
        def sink(data):
            if self.first_output is None:
                self.first_output = time.monotonic()
            while data:
                data = data[os.write(fd, data):]
        return sink

    def ended(self, started, console):
        self.process.wait()
        console.flush()
        text = f"the guest ended by itself (QEMU: {self.process.returncode})"
        return Failed(text) if started else Silent(text)


class Silent(Exception):
    """Nothing heard, or gone, before the command was started: another attempt is harmless."""


def arguments(kernel, initrd, disks, parallel, counted, selinux, memory):
    """The flags of the recipe in docs/vm.md; with plain `-cpu max` guests fault at random, and with CPUs that
    run at once where the kernel patches code that the other one runs, as it does when a probe comes or goes."""
    threads = "multi" if parallel else "single"
    line = ["qemu-system-x86_64", "-accel", f"tcg,thread={threads}", "-cpu", "max,-cx16", "-M", "q35",
            "-smp", "2", "-m", str(memory), "-nodefaults", "-display", "none", "-no-reboot",
            "-serial", "stdio", "-kernel", kernel, "-initrd", initrd,
            "-append", "console=ttyS0 quiet panic=-1 nokaslr mitigations=off" +
            (" security=selinux selinux=1 enforcing=1" if selinux else ""),
            "-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]
    if counted:  # 2 ns each; while all CPUs wait, the clock goes to what they wait for at once
        line += ["-icount", "shift=1,sleep=off"]
    for i, (path, serial, read_only) in enumerate(disks):
        # The guest's flushes need not reach this machine's disk; they are done in order.
        line += ["-drive", f"file={path},if=none,id=disk{i},format=raw,discard=unmap,"
                 f"cache=unsafe,readonly={'on' if read_only else 'off'}",
                 "-device", f"virtio-blk-pci,drive=disk{i}" + (f",serial={serial}" if serial else "")]
    return line


def say(text):
    print(f"vm: {text}", file=sys.stderr, flush=True)
