# redis-py's Lock as a client: the same orders and the same lines as the laboratory's own process (see agent.rs).
import json
import socket
import sys
import threading
import time

import redis

name, url = sys.argv[1], sys.argv[2]
client = redis.Redis.from_url(url, socket_timeout=5)
held = {}
versions = {}
writing = threading.Lock()


def say(what):
    with writing:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()


def tell(**event):
    say({"at": time.clock_gettime_ns(time.CLOCK_BOOTTIME), "by": name, **event})


def done(order, came, why=""):
    say({"order": order, "came": came, "why": str(why)})


def acquire(order, lock, grant, ttl_ms, wait_ms, **_):
    mine = redis.lock.Lock(client, lock, timeout=ttl_ms / 1000, sleep=0.02, thread_local=False)
    tell(event="invoke", verb="acquire", lock=lock, grant=grant)
    started = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    try:
        # It does not say when the request that succeeded was sent: the promise is counted from the last try at most.
        limit = None if wait_ms is None else wait_ms / 1000
        taken = False
        while not taken:
            sent = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            taken = mine.acquire(blocking=False)
            waited = (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started) / 1e9
            if taken or (limit is not None and waited >= limit):
                break
            time.sleep(0.02)
    except Exception as error:
        tell(event="unknown", why=repr(error))
        return done(order, "failed", error)
    if not taken:
        tell(event="fail", why="busy")
        return done(order, "no", "busy")
    tell(event="ok", answer="granted", ttl=ttl_ms * 1_000_000, **{"from": sent})
    held[grant] = (lock, mine)
    done(order, "yes")


def check(order, grant):
    lock, mine = held[grant]
    tell(event="invoke", verb="check", lock=lock, grant=grant)
    owned = mine.owned()
    tell(event="ok", answer="held" if owned else "not-held")
    done(order, "yes" if owned else "no")


def release(order, grant):
    lock, mine = held.pop(grant)
    tell(event="invoke", verb="release", lock=lock, grant=grant)
    try:
        mine.release()
        tell(event="ok", answer="released")
        done(order, "yes")
    except redis.exceptions.LockError as error:
        tell(event="ok", answer="already-expired")
        done(order, "no", error)
    except Exception as error:
        tell(event="unknown", why=repr(error))
        done(order, "failed", error)


def ask(resource, **asked):
    host, port = resource.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as stream:
        stream.sendall((json.dumps(asked) + "\n").encode())
        return json.loads(stream.makefile().readline())


def read(order, grant, resource):
    answer = ask(resource, grant=grant, fence=None, basis=None)
    versions[grant] = answer["version"]
    done(order, "yes" if answer["taken"] else "no")


def write(order, grant, resource):
    answer = ask(resource, grant=grant, fence=None, basis=versions.get(grant, 0))
    versions[grant] = answer["version"]
    done(order, "yes" if answer["taken"] else "no")


def obey(task, order):
    try:
        {"acquire": acquire, "check": check, "release": release, "read": read, "write": write}[task.pop("do")](
            order, **task
        )
    except Exception as error:
        done(order, "failed", repr(error))


client.ping()
say({"ready": True})
for line in sys.stdin:
    task = json.loads(line)
    order = task.pop("order")
    if task["do"] == "acquire":
        threading.Thread(target=obey, args=(task, order), daemon=True).start()
    else:
        obey(task, order)
