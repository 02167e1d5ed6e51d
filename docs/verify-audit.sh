#!/bin/sh
# sh verify-audit.sh audit.log.0* audit.log        the files of one log, oldest first
bad() { echo "$file: line $n: $1"; exit 1; }
for file; do n=0
  while n=$((n + 1)); IFS= read -r line || { [ -z "$line" ] || bad "torn: no line feed"; false; }; do
    seq=${line#'{"seq":'} seq=${seq%%,*} prev=${line##*'"prev":"'} prev=${prev%'"}'}
    case $seq in '' | *[!0-9]*) bad "not a record" ;; 1) want=sha256:$(printf %064d 0) ;; esac
    [ "${next-$seq}" = "$seq" ] || bad "seq is $seq, expected $next"
    [ "${want-$prev}" = "$prev" ] || bad "prev is not the hash of the line before"
    sum=$(printf %s "$line" | sha256sum) want=sha256:${sum%% *} next=$((seq + 1)) last=$seq
  done < "$file" || exit 1
done; echo "ok: the last record is ${last:?no record was found}, its hash $want"
