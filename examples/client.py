"""A client of `dynedge serve`: sends an event, then requests recommendations for its user.

python examples/client.py http://127.0.0.1:8000 ann "Lost Levee"
"""

import json
import sys
from datetime import UTC, datetime
from urllib.parse import quote
from urllib.request import Request, urlopen

service, user, item = sys.argv[1:]
now = datetime.now(UTC).isoformat()  # ISO 8601, valid for any time unit of the log
event = {"user_id": user, "item_id": item, "timestamp": now, "event_id": f"{user} {now}"}
body = json.dumps({"events": [event]}).encode()
with urlopen(Request(f"{service}/events", body, {"Content-Type": "application/json"})) as response:
    print(json.load(response))
with urlopen(f"{service}/users/{quote(user, safe='')}/recommendations?k=5") as response:
    for best in json.load(response)["items"]:
        print(f"{best['score']:8.3f}  {best['item_id']}")
