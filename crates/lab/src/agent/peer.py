# Locks of other people as clients: the same orders and the same lines as the laboratory's own process (see agent.rs).
import base64
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

# The shortest session that the laboratory's servers grant, in seconds.
SESSION = 1.5
kind, name, url = sys.argv[1:4]
held = {}
versions = {}
writing = threading.Lock()


def say(what):
    with writing:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def tell(**event):
    say({"at": now(), "by": name, **event})


def done(order, came, why=""):
    say({"order": order, "came": came, "why": str(why)})


def kept_alive(seconds):
    """What is promised of a lease that is kept alive out of sight: the last sign of life is a third of it ago at most."""
    return {"ttl": int(seconds * 2 / 3 * 1e9), "from": now()}


def quiet():
    logger = logging.getLogger("kazoo")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


class RedisPy:
    """redis-py's Lock."""

    def __init__(self):
        import redis

        self.lock = redis.lock.Lock
        self.lost = redis.exceptions.LockError
        self.client = redis.Redis.from_url(url, socket_timeout=5)
        self.client.ping()

    def take(self, lock, ttl_ms, limit):
        mine = self.lock(self.client, lock, timeout=ttl_ms / 1000, sleep=0.02, thread_local=False)
        started = now()
        while True:
            # It does not say when the request that succeeded was sent: the promise is counted from the last try at most.
            sent = now()
            if mine.acquire(blocking=False):
                return mine, {"ttl": ttl_ms * 1_000_000, "from": sent}
            if limit is not None and (now() - started) / 1e9 >= limit:
                return None, {}
            time.sleep(0.02)

    def holds(self, mine):
        return mine.owned()

    def give_back(self, mine):
        try:
            mine.release()
            return True
        except self.lost:
            return False


class Kazoo:
    """kazoo's Lock. Its lease is the session's, and it says of that only whether it is connected."""

    def __init__(self):
        from kazoo.client import KazooClient

        from kazoo.exceptions import LockTimeout

        self.timeout = LockTimeout
        self.client = KazooClient(hosts=url.removeprefix("zookeeper://"), timeout=SESSION, logger=quiet())
        self.client.add_listener(self.changed)
        self.client.start(timeout=20)

    def changed(self, state):
        """Whoever is disconnected is told to stop, which is what kazoo's documentation asks of its users."""
        if state != "CONNECTED":
            for grant in held:
                tell(event="lost", grant=grant, why=state)

    def take(self, lock, ttl_ms, limit):
        mine = self.client.Lock("/peers/" + lock.replace("/", "."), name)
        try:
            taken = mine.acquire(timeout=limit)
        except self.timeout:
            taken = False
        return (mine if taken else None), kept_alive(SESSION)

    def holds(self, mine):
        return mine.is_acquired and self.client.connected

    def give_back(self, mine):
        return mine.release()


class Etcdctl:
    """`etcdctl lock`, which holds as long as the command that it runs."""

    def __init__(self):
        if not shutil.which("etcdctl"):
            raise RuntimeError("etcdctl is not installed")
        self.hosts = url.removeprefix("etcd://")

    def take(self, lock, ttl_ms, limit):
        ttl = max(1, round(ttl_ms / 1000))
        command = ["etcdctl", "--endpoints", self.hosts, "lock", "--ttl", str(ttl), lock, "--"]
        # The command has no input that could tell it to end.
        command += ["sh", "-c", "echo held $$; exec sleep 60"]
        mine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        timer = threading.Timer(limit, mine.kill) if limit is not None else None
        if timer:
            timer.start()
        said = mine.stdout.readline().split()
        if timer:
            timer.cancel()
        return ((mine, int(said[1])) if said else None), kept_alive(ttl)

    def holds(self, mine):
        return mine[0].poll() is None

    def give_back(self, mine):
        lock, command = mine
        held = lock.poll() is None
        if held:
            os.kill(command, signal.SIGTERM)
            lock.wait(timeout=20)
        return held


class Naive:
    """What many write first. It believes until it has given back, and never asks whose lock it gives back."""

    def take(self, lock, ttl_ms, limit):
        started = now()
        while True:
            sent = now()
            promised = self.put(lock, ttl_ms)
            if promised:
                return lock, {"from": sent, **promised}
            if limit is not None and (now() - started) / 1e9 >= limit:
                return None, {}
            time.sleep(0.02)

    def holds(self, mine):
        return True


class NaiveEtcd(Naive):
    """Puts a key with a lease when there is none, and deletes that key, whoever's it is."""

    def ask(self, path, **body):
        host = url.removeprefix("etcd://")
        request = urllib.request.Request(f"http://{host}/v3/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def put(self, lock, ttl_ms):
        key = base64.b64encode(lock.encode()).decode()
        if self.ask("kv/range", key=key).get("kvs"):
            return None
        lease = self.ask("lease/grant", TTL=max(1, round(ttl_ms / 1000)))
        absent = {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        put = {"request_put": {"key": key, "value": "", "lease": lease["ID"]}}
        taken = self.ask("kv/txn", compare=[absent], success=[put]).get("succeeded")
        return {"ttl": int(lease["TTL"]) * 1_000_000_000} if taken else None

    def give_back(self, lock):
        return "deleted" in self.ask("kv/deleterange", key=base64.b64encode(lock.encode()).decode())


class NaiveZooKeeper(Naive):
    """Makes an ephemeral node where there is none, and deletes it, whoever's it is."""

    def __init__(self):
        from kazoo.client import KazooClient
        from kazoo.exceptions import NodeExistsError, NoNodeError

        self.exists, self.missing = NodeExistsError, NoNodeError
        self.client = KazooClient(hosts=url.removeprefix("zookeeper://"), timeout=SESSION, logger=quiet())
        self.client.start(timeout=20)

    def path(self, lock):
        return "/naive-" + lock.replace("/", ".")

    def put(self, lock, ttl_ms):
        if self.client.exists(self.path(lock)):
            return None
        try:
            self.client.create(self.path(lock), ephemeral=True)
        except self.exists:
            return None
        return kept_alive(SESSION)

    def give_back(self, lock):
        try:
            self.client.retry(self.client.delete, self.path(lock))
            return True
        except self.missing:
            return False


class NaiveFile(Naive):
    """Makes a lock file with its number, takes one that is older than a TTL for abandoned, and removes it, whoever's it is."""

    def path(self, lock):
        directory = url.removeprefix("file:")
        os.makedirs(directory, exist_ok=True)
        return os.path.join(directory, lock.replace("/", ".") + ".pid")

    def put(self, lock, ttl_ms):
        try:
            if time.time() - os.stat(self.path(lock)).st_mtime > ttl_ms / 1000:
                os.unlink(self.path(lock))
        except FileNotFoundError:
            pass
        try:
            made = os.open(self.path(lock), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return None
        with os.fdopen(made, "w") as file:
            file.write(str(os.getpid()))
        # A file's time is that of the last tick of the kernel.
        return {"ttl": (ttl_ms - 10) * 1_000_000}

    def give_back(self, lock):
        try:
            os.unlink(self.path(lock))
            return True
        except FileNotFoundError:
            return False


def acquire(order, lock, grant, ttl_ms, wait_ms, **_):
    tell(event="invoke", verb="acquire", lock=lock, grant=grant)
    try:
        mine, promised = peer.take(lock, ttl_ms, None if wait_ms is None else wait_ms / 1000)
    except Exception as error:
        tell(event="unknown", why=repr(error))
        return done(order, "failed", error)
    if mine is None:
        tell(event="fail", why="busy")
        return done(order, "no", "busy")
    tell(event="ok", answer="granted", **promised)
    held[grant] = (lock, mine)
    done(order, "yes")


def check(order, grant):
    lock, mine = held[grant]
    tell(event="invoke", verb="check", lock=lock, grant=grant)
    holds = peer.holds(mine)
    tell(event="ok", answer="held" if holds else "not-held")
    done(order, "yes" if holds else "no")


def release(order, grant):
    lock, mine = held.pop(grant)
    tell(event="invoke", verb="release", lock=lock, grant=grant)
    try:
        released = peer.give_back(mine)
        tell(event="ok", answer="released" if released else "already-expired")
        done(order, "yes" if released else "no")
    except Exception as error:
        tell(event="unknown", why=repr(error))
        done(order, "failed", error)


def ask(resource, **asked):
    host, port = resource.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as stream:
        stream.sendall((json.dumps(asked) + "\n").encode())
        return json.loads(stream.makefile().readline())


def read(order, grant, resource):
    answer = ask(resource, grant=grant, fence=None, errand="read")
    versions[grant] = answer["version"]
    done(order, "yes" if answer["taken"] else "no")


def write(order, grant, resource):
    answer = ask(resource, grant=grant, fence=None, errand={"write": {"basis": versions.get(grant, 0)}})
    versions[grant] = answer["version"]
    done(order, "yes" if answer["taken"] else "no")


def obey(task, order):
    try:
        {"acquire": acquire, "check": check, "release": release, "read": read, "write": write}[task.pop("do")](
            order, **task
        )
    except Exception as error:
        done(order, "failed", repr(error))


peers = {"redis": RedisPy, "kazoo": Kazoo, "etcdctl": Etcdctl}
naive = {"naive-etcd": NaiveEtcd, "naive-zookeeper": NaiveZooKeeper, "naive-file": NaiveFile}
peer = {**peers, **naive}[kind]()
say({"ready": True})
for line in sys.stdin:
    task = json.loads(line)
    order = task.pop("order")
    if task["do"] == "acquire":
        threading.Thread(target=obey, args=(task, order), daemon=True).start()
    else:
        obey(task, order)
