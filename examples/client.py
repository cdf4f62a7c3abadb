"""A client of `dynedge serve`: sends what just happened, then asks what the user may want next.

python examples/client.py http://127.0.0.1:8000 ann "Lost Levee"
"""

import json
import sys
from datetime import UTC, datetime
from urllib.parse import quote
from urllib.request import Request, urlopen

service, user, item = sys.argv[1:]
now = datetime.now(UTC).isoformat()  # right whatever the unit of the run's log
event = {"user_id": user, "item_id": item, "timestamp": now, "event_id": f"{user} {now}"}
body = json.dumps({"events": [event]}).encode()
with urlopen(Request(f"{service}/events", body, {"Content-Type": "application/json"})) as answer:
    print(json.load(answer))
with urlopen(f"{service}/users/{quote(user, safe='')}/recommendations?k=5") as answer:
    for best in json.load(answer)["items"]:
        print(f"{best['score']:8.3f}  {best['item_id']}")
