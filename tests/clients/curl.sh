#!/usr/bin/env bash
# A run read by `curl -sN`; prints the raw body. What the run asks is answered beside it by answering.mjs, which takes
# the same arguments.
set -euo pipefail
here="$(dirname "${BASH_SOURCE[0]}")"

die() { printf 'failed: %s\n' "$*" >&2; exit 1; }

arguments=("$@")
base='' cell='' prompt='' session='' token='' model=gpt-4o timeout=60
while [ $# -gt 0 ]; do
    case "$1" in
        --cell | --prompt | --session | --token | --model | --timeout)
            [ $# -ge 2 ] || die "$1 takes a value"
            printf -v "${1#--}" '%s' "$2"
            shift 2
            ;;
        --answer) shift 2 ;;
        -*) die "unknown option $1" ;;
        *) base="${1%/}"; shift ;;
    esac
done
[ -n "$base" ] || die 'exactly one BASE_URL is needed'
[ -n "$cell" ] || die '--cell is needed'
[ -n "$prompt" ] || die '--prompt is needed'

# Escaped as a JSON string: the backslash first, then the quote and the white space that a shell argument may hold.
json_string() {
    local text="${1//\\/\\\\}"
    text="${text//\"/\\\"}"
    text="${text//$'\n'/\\n}"
    text="${text//$'\t'/\\t}"
    printf '"%s"' "$text"
}

body="{\"actor\":\"user-001\",\"model\":$(json_string "$model"),"
[ -z "$session" ] || body+="\"session_id\":$(json_string "$session"),"
body+="\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":$(json_string "$prompt")}]}]}"
headers=(--header 'Content-Type: application/json')
[ -z "$token" ] || headers+=(--header "Authorization: Bearer $token")

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
mkfifo "$scratch/copy"
node "$here/answering.mjs" "${arguments[@]}" <"$scratch/copy" >&2 &
answering=$!

curl --silent --show-error --no-buffer --fail-with-body --noproxy '*' --max-time "$timeout" \
    "${headers[@]}" --data-binary "$body" "$base/cells/$cell/run" | tee "$scratch/copy" || die 'curl gave up'
wait "$answering"
