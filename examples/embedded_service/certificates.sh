#!/usr/bin/env bash
# certificates.sh FOLDER NAME...: creates a certificate authority (FOLDER/ca.pem), and for each agent FOLDER/NAME.pem
# and FOLDER/NAME-key.pem. For experiments: a real job has an authority already.
set -euo pipefail
folder=$1
shift
mkdir -p "$folder"
cd "$folder"
umask 077
curve=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
[ -e ca.pem ] || openssl req -x509 "${curve[@]}" -keyout ca-key.pem -out ca.pem -days 30 -subj '/CN=an authority' \
  -addext 'keyUsage=critical,keyCertSign' 2>/dev/null
for name in "$@"; do
  openssl req "${curve[@]}" -keyout "$name-key.pem" -subj "/CN=$name" 2>/dev/null |
    openssl x509 -req -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 30 -out "$name.pem" -extfile <(
      echo "subjectAltName=URI:weft://$name,DNS:$name,DNS:localhost,IP:127.0.0.1,IP:::1"
      echo 'extendedKeyUsage=serverAuth,clientAuth') 2>/dev/null
done
