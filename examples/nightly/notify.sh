#!/bin/sh
# Append the news of a nightly run to a log; put your mail or chat command here.
python3 -c '
import json, sys
told = json.load(sys.stdin)
print(told["night"], told["headline"])
for one in told["news"]:
    print("  " + one["status"], one["case"], one["figure"], one["change"], one["why"])
' >> results/told.log
