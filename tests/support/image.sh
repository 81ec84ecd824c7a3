# Makes image.tar, an OCI layout of one layer with busybox in it, in the current directory.
# $0: the image's name; $1: its architecture.
mkdir -p layer/bin layer/host image/blobs/sha256
cp /bin/busybox layer/bin/
for applet in sh sleep cat; do ln -sf busybox "layer/bin/$applet"; done
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
printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":["/bin/sleep","1000000"]},
  "rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$1" "$(blob layer.tar)" > config.json
printf '{"schemaVersion":2,"config":{%s},"layers":[{%s}]}' \
    "$(about config.json config.v1+json)" "$layer" > manifest.json
printf '{"schemaVersion":2,"manifests":[{%s,"annotations":{"io.containerd.image.name":"%s"}}]}' \
    "$(about manifest.json manifest.v1+json)" "$0" > image/index.json
printf '{"imageLayoutVersion":"1.0.0"}' > image/oci-layout
tar -cf image.tar -C image .
