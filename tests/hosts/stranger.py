"""Connects to ports of a job to which it does not belong: stranger.py silent|noise|flood

Prints "ready", then reads lines with an address and a port from stdin. For each it starts a thread, until stdin ends.
Then prints the number of connections to each as a JSON object.
"""
import json
import os
import random
import socket
import sys
import threading
import time

HELD = 32          # connections that `silent` keeps open
PAUSE = 0.002      # seconds between connections: the ranks need the cores as well
MOST_NOISE = 4096  # bytes of a connection

ended = threading.Event()


def attack(way, address, port, counts):
    held = []
    while not ended.is_set():
        try:
            link = socket.create_connection((address, port), timeout=1)
            counts[f"{address}:{port}"] += 1
            if way == "noise":
                link.sendall(os.urandom(random.randint(1, MOST_NOISE)))
            if way != "flood":
                held.append(link)
            else:
                link.close()
            if len(held) > HELD:
                held.pop(0).close()
        except OSError:
            pass  # refused, or closed by the job
        time.sleep(PAUSE if way != "silent" or len(held) < HELD else 0.1)


def main():
    counts, threads = {}, []
    print("ready", flush=True)
    for line in sys.stdin:
        address, port = line.split()
        counts[f"{address}:{port}"] = 0
        threads.append(threading.Thread(target=attack, args=(sys.argv[1], address, int(port), counts), daemon=True))
        threads[-1].start()
    ended.set()
    for thread in threads:
        thread.join(timeout=2)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
