#!/usr/bin/env bash
# SSE with curl alone: starts a run and shows it, answers what it asks, reads its end again, and stops a second run.
# The server never cancels a run because a reader left; only `interrupt` stops it.
#
#   examples/curl.sh [BASE_URL] [PROMPT]
set -euo pipefail

base="${1:-http://127.0.0.1:9091}"
base="${base%/}"
prompt="${2:-What does median do?}"
cell="$base/cells/my-cell"

# `-N` prints each event as it comes. Where the server wants a token, add: -H "Authorization: Bearer $TOKEN"
call() { curl --no-buffer --silent --show-error --fail-with-body -H 'Content-Type: application/json' "$@"; }

start() {
    local text="${1//\\/\\\\}" # a prompt in JSON: backslashes first, then quotes and line feeds
    text="${text//\"/\\\"}"
    text="${text//$'\n'/\\n}"
    call "$cell/run" -d "{\"actor\":\"me\",\"model\":\"gpt-4o\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"$text\"}]}]}"
}

# The first string member of this name in a line of JSON: enough for ids, not for texts.
member() { sed -E "s/.*\"$1\":\"([^\"]*)\".*/\1/" <<<"$2"; }

# Shows events, counts them, and allows what is asked. $1 is the event type at which the run is stopped, if any.
follow() {
    local stop_at="${1:-}" line type=''
    seen=0
    while IFS= read -r line; do
        [[ $line == 'data: '* ]] || continue # comments keep the connection alive, blank lines end events
        printf '%s\n' "$line"
        seen=$((seen + 1))
        type="$(member type "${line%%,*}")"
        case "$type" in
            run_start) run="$(member run_id "$line")" ;;
            approval_request) # a question takes {"answers":{"its text":"a label"}} as well, a form {"content":{"its field":"a value"}}
                call "$cell/hitl/$(member request_id "$line")" -d '{"grant":"allow"}'
                echo
                ;;
        esac
        if [[ $type == "$stop_at" ]]; then
            stop_at=''
            call "$cell/runs/$run/interrupt" -d '{"reason":"user"}'
            echo
        fi
    done
    [[ $type == done || $type == interrupted ]]
}

echo '== a run'
follow < <(start "$prompt")

# Events have no number in them: whoever has counted k of them asks for k + 1. The same works while the run still goes on.
from=$((seen - 2))
echo "== the same run from event $from"
call "$cell/runs/$run/events?from_seq=$from"

echo '== a run that is stopped'
follow stream_delta < <(start 'A long answer, please.')
