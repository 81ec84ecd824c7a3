# Makes $0.tar, an OCI layout whose one layer is the directory $0/layer.
# $1: the image's name; $2: its architecture; $3: its configuration.
cd "$0"
mkdir -p image/blobs/sha256
tar -cf layer.tar -C layer .

# blob FILE: stores it under its digest, which it prints.
blob() {
    digest=$(sha256sum "$1" | cut -d ' ' -f 1)
    cp "$1" "image/blobs/sha256/$digest"
    echo "$digest"
}
# about FILE MEDIATYPE: its descriptor, without the braces.
about() {
    printf '"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%d' \
        "$2" "$(blob "$1")" "$(stat -c %s "$1")"
}
layer=$(about layer.tar layer.v1.tar)
printf '{"architecture":"%s","os":"linux","config":%s,
  "rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$2" "$3" "$(blob layer.tar)" > config.json
printf '{"schemaVersion":2,"config":{%s},"layers":[{%s}]}' \
    "$(about config.json config.v1+json)" "$layer" > manifest.json
printf '{"schemaVersion":2,"manifests":[{%s,"annotations":{"io.containerd.image.name":"%s"}}]}' \
    "$(about manifest.json manifest.v1+json)" "$1" > image/index.json
printf '{"imageLayoutVersion":"1.0.0"}' > image/oci-layout
tar -cf "../$0.tar" -C image .
