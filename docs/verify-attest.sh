#!/bin/sh
# sh verify-attest.sh ANSWER.json NONCE AUDIT-KEY.pem [TPM-KEY.pem]     the answer is what `hearth --json attest show` prints
set -eu
answer=$1 nonce=$2 key=$3 tpm=${4-} dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT
bad() { echo "$1"; exit 1; }
field() { sed 's/.*"'"$1"'":"\([^"]*\)".*/\1/' "$answer"; }   # of the answer, which is one line of JSON
field payload | base64 -d > "$dir/statement" 2> "$dir/out" || bad "not-a-statement: no payload"
type=$(field payloadType) size=$(wc -c < "$dir/statement")
{ printf 'DSSEv1 %d %s %d ' "${#type}" "$type" "$size"; cat "$dir/statement"; } > "$dir/signed"
field sig | base64 -d > "$dir/sig" 2> "$dir/out" || bad "bad-signature: no signature"
openssl pkeyutl -verify -pubin -inkey "$key" -rawin -in "$dir/signed" -sigfile "$dir/sig" > "$dir/out" 2>&1 ||
    bad "bad-signature: the statement is not signed by $key"
[ "$type" = application/vnd.hearth.attestation+json ] || bad "not-a-statement: the type is $type"
grep -q '"format":"hearth-attestation/1"' "$dir/statement" || bad "not-a-statement: another format"
grep -q '"nonce":"'"$nonce"'"' "$dir/statement" || bad "other-nonce: the statement is not for $nonce"
if [ -n "$tpm" ]; then
    grep -q '"quote":"' "$answer" || bad "no-tpm: the answer has no quote"
    field quote | base64 -d > "$dir/quote"
    field signature | base64 -d > "$dir/signature"
    digest=$(openssl dgst -sha256 -r "$dir/statement"); digest=${digest%% *}
    tpm2_checkquote -u "$tpm" -m "$dir/quote" -s "$dir/signature" -g sha256 -q "$digest" > "$dir/out" 2>&1 ||
        bad "other-quote: the TPM's quote is not by $tpm, or not for this statement"
    pcr=$(sed 's/.*"pcr":\([0-9]*\).*/\1/' "$dir/statement")
    set -- $(tail -c 37 "$dir/quote" | head -c 3 | od -An -tu1)
    [ $(($1 + $2 * 256 + $3 * 65536)) = $((1 << pcr)) ] || bad "wrong-pcr: another register than $pcr is quoted"
    value=$(sed 's/.*"before":"\([0-9a-f]*\)".*/\1/' "$dir/statement")
    [ "$value" = "$(printf %064d 0)" ] || bad "wrong-pcr: other software extended the PCR first"
    unhex() { rest=$1; while [ -n "$rest" ]; do byte=$rest rest=${rest#??}; printf "\\$(printf %03o "0x${byte%"$rest"}")"; done; }
    for event in $(sed 's/.*"events":\[\([^]]*\)\].*/\1/; s/[",]/ /g' "$dir/statement"); do
        value=$(unhex "$value$event" | openssl dgst -sha256 -r); value=${value%% *}
    done
    value=$(unhex "$value" | openssl dgst -sha256 -r); value=${value%% *}
    [ "$(tail -c 32 "$dir/quote" | od -An -v -tx1 | tr -d ' \n')" = "$value" ] || bad "wrong-pcr: the events do not lead to the quoted value"
    sed 's/.*"measured":\({[^}]*}\).*/\1/' "$dir/statement" | tr -d '\n' | openssl dgst -sha256 -r | grep -q "^$event " ||
        bad "wrong-pcr: the PCR was extended with other measurements"
fi
echo "ok: signed by $key${tpm:+ and quoted by $tpm}, for this nonce"
sed 's/.*"measured":{\([^}]*\)}.*/\1/; s/","/\n/g; s/"//g' "$dir/statement"
echo
