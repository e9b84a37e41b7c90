#!/bin/sh
# supply/timed.sh WORDS COMMAND...: run a command, and say meanwhile how long it has taken.
words=$1
shift
start=$(date +%s)
say() { printf "$1%s: %d s$2" "$words" $(($(date +%s) - start)); }
clock() {
  while sleep 1 && kill -0 $$ 2>/dev/null; do  # ends with this shell, however that ends
    if [ -t 1 ]; then
      say '\r' ''
    elif [ $((($(date +%s) - start) % 10)) -eq 0 ]; then
      say '' '\n'
    fi
  done
}
clock &
"$@"
status=$?
kill $! 2>/dev/null
if [ -t 1 ]; then say '\r' '\n'; else say '' '\n'; fi
exit $status
