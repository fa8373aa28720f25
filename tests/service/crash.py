"""Kill the service at random moments and see that nothing it acknowledged is missing or double.

python tests/service/crash.py --kills 200
python tests/service/crash.py --kills 200 --database postgresql://... --processes 2
"""

import argparse
import json
import random
import tempfile
import time

from service.harness import Ledger, Service, trouble, wait_for


def crash(
    database: str, kills: int, processes: int = 1, *, politely: bool = False
) -> dict[str, int]:
    """End and start a process so many times, with no warning or (politely) as upgrades do."""

    def cause(services: list[Service], ledger: Ledger, rng: random.Random) -> None:
        for _ in range(kills):
            wait_for(ledger, len(ledger.decisions) + 5)
            time.sleep(rng.uniform(0.05, 0.6))
            victim = rng.choice(services)
            if politely:
                victim.stop()
            else:
                victim.kill()
            victim.start()
            victim.wait_until_ready()

    return trouble(database, cause, processes) | {"kills": kills}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--database", help="PostgreSQL or SQLite; one of each if left out")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.database:
            print(json.dumps(crash(options.database, options.kills, options.processes)))
            return
        print("sqlite", json.dumps(crash(f"{folder}/crash.sqlite", options.kills)), flush=True)
        import pgserver

        with pgserver.get_server(f"{folder}/postgres") as server:
            for number, processes in enumerate((1, 2)):
                server.psql(f"CREATE DATABASE crash{number};")
                url = server.get_uri(database=f"crash{number}")
                counts = crash(url, options.kills, processes)
                print("postgresql", processes, "processes", json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
