# Builds kube-apiserver and kubelet 1.20 in the tree of Debian's source package, which is the current directory and
# lies in GOPATH. $1: Debian's Go libraries; $2: where the programs go.
libraries=$1 out=$2
PATH=/usr/lib/go-1.19/bin:$PATH
here=k8s.io/kubernetes

rm -r vendor/github.com/modern-go/reflect2
cp -r "$libraries/github.com/modern-go/reflect2" vendor/github.com/modern-go/

# What `make` generates by a tool of its own; all else that is generated comes with the source.
echo "1 of 3: the API's description"
go build -o "$TMPDIR/openapi-gen" "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"
packages=$(grep -rl --include='*.go' '+k8s:openapi-gen=' vendor/k8s.io/*/ pkg cmd plugin |
    grep -v -e ^vendor/k8s.io/code-generator/ -e ^vendor/k8s.io/sample-apiserver/ | xargs -n 1 dirname | LC_ALL=C sort -u | sed "s#^#$here/#" | paste -sd ,)
"$TMPDIR/openapi-gen" -i "$packages" -p "$here/pkg/generated/openapi" -O zz_generated.openapi \
    -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$TMPDIR/violations"

flags="-s -w"
for package in component-base/version client-go/pkg/version; do
    version="-X $here/vendor/k8s.io/$package"
    flags="$flags $version.gitVersion=v1.20.2 $version.gitMajor=1 $version.gitMinor=20"
done
# build NUMBER NAME
build() {
    echo "$1 of 3: $2"
    # A line for each package; of them every 200th is shown.
    go build -v -ldflags "$flags" -o "$out/$2" "./cmd/$2" 2>"$TMPDIR/packages" &
    go=$!
    seen=0
    while kill -0 $go 2>/dev/null; do
        sleep 1
        now=$(($(wc -l <"$TMPDIR/packages") / 200))
        [ $now = $seen ] || echo "       $((now * 200)) packages are compiled"
        seen=$now
    done
    wait $go || { tail -n 20 "$TMPDIR/packages" && exit 1; }
}
build 2 kube-apiserver
build 3 kubelet
