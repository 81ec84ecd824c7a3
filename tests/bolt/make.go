// Makes the bolt files of the unit tests with the real bolt, and writes one without end.
//
// With Debian's golang-go and golang-github-coreos-bbolt-dev, at the top of the repository:
//
//	export GO111MODULE=off GOPATH=/usr/share/gocode
//	go run tests/bolt/make.go terway ipwatch/src/sources/ipam/bolt/fixtures/terway.db
//	go run tests/bolt/make.go nested ipwatch/src/sources/ipam/bolt/fixtures/nested.db
//	go run tests/bolt/make.go commit FILE    # one transaction after another, until its standard input ends
//
// libnetwork.db and netavark.db beside them are dockerd's (20.10) and podman's (4.3), copied while they ran.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
)

// As Terway's types/daemon/res.go has them. No Terway wrote these files: it runs in one cloud only.
type podInfo struct {
	Name, Namespace, PodNetworkType, PodIP string
	PodIPs                                 map[string]string
	SandboxExited, PodENI                  bool
	PodUID, NetworkPriority                string
}

type resource struct {
	Type         string      `json:"type"`
	ID           string      `json:"id"`
	ExtraEipInfo interface{} `json:"extra_eip_info"`
	ENIID        string      `json:"eni_id"`
	ENIMAC       string      `json:"eni_mac"`
	IPv4         string      `json:"ipv4"`
	IPv6         string      `json:"ipv6"`
}

type podResources struct {
	Resources   []resource
	PodInfo     *podInfo
	NetNs       *string
	ContainerID *string
	NetConf     string
}

const mac = "00:16:3e:0a:0b:0c"

func pod(name, uid, ip string) *podInfo {
	return &podInfo{Name: name, Namespace: "shop", PodNetworkType: "ENIMultiIP", PodIP: ip, PodUID: uid}
}

func terway(tx *bolt.Tx) {
	bucket, err := tx.CreateBucketIfNotExists([]byte("relation"))
	check(err)
	put := func(name string, r podResources) {
		value, err := json.Marshal(r)
		check(err)
		check(bucket.Put([]byte("shop/"+name), value))
	}
	container, netns := strings.Repeat("c1", 32), "/proc/4711/ns/net"
	// A value of more than a page.
	long := `[{"BasicInfo":{"token":"canary-` + strings.Repeat("x", 6000) + `"}}]`
	put("dual", podResources{
		Resources: []resource{{Type: "eniIp", ID: mac + ".10.0.3.17-fd00::17", ENIID: "eni-2ze1",
			ENIMAC: mac, IPv4: "10.0.3.17", IPv6: "fd00::17"}},
		PodInfo: pod("dual", "uid-dual", "10.0.3.17"), NetNs: &netns, ContainerID: &container, NetConf: long,
	})
	put("whole-eni", podResources{
		Resources: []resource{{Type: "eni", ID: mac, ENIID: "eni-2ze2", ENIMAC: mac, IPv4: "10.0.3.18"}},
		PodInfo:   pod("whole-eni", "uid-eni", "10.0.3.18"), NetNs: &netns, ContainerID: &container,
	})
	// Of versions before the fields for the IP.
	put("old", podResources{Resources: []resource{{Type: "eniIp", ID: mac + ".10.0.3.19"}}, PodInfo: pod("old", "", "")})
	put("old-eni", podResources{Resources: []resource{{Type: "eni", ID: mac}}, PodInfo: pod("old-eni", "", "10.0.3.20")})
	put("veth", podResources{Resources: []resource{{Type: "veth", ID: "cali1"}}, PodInfo: pod("veth", "", "")})
	put("nameless", podResources{Resources: []resource{{Type: "eniIp", ID: mac + ".10.0.3.21"}}})
	for n := 0; n < 14; n++ {
		ip := fmt.Sprintf("10.0.4.%d", n)
		name := fmt.Sprintf("api-%02d", n)
		put(name, podResources{Resources: []resource{{Type: "eniIp", ID: mac + "." + ip, ENIID: "eni-2ze1",
			ENIMAC: mac, IPv4: ip}}, PodInfo: pod(name, "uid-"+name, ip), ContainerID: &container})
	}
}

// Buckets in buckets, with pages of their own and without, and keys over several levels of branches.
func nested(tx *bolt.Tx) {
	bucket, err := tx.CreateBucketIfNotExists([]byte("large"))
	check(err)
	for n := 0; n < 150; n++ {
		check(bucket.Put([]byte(fmt.Sprintf("key-%03d-%s", n, strings.Repeat("k", 40))), []byte(fmt.Sprint(n))))
	}
	within, err := bucket.CreateBucketIfNotExists([]byte("within"))
	check(err)
	small, err := within.CreateBucketIfNotExists([]byte("small"))
	check(err)
	check(small.Put([]byte("a"), []byte("1")))
	_, err = tx.CreateBucketIfNotExists([]byte("empty"))
	check(err)
}

// A transaction replaces everything of the one before it, by as many keys as its number gives. The bucket
// `ballast` grows, and the file with it.
func replace(number int) func(*bolt.Tx) error {
	return func(tx *bolt.Tx) error {
		if number > 1 {
			check(tx.DeleteBucket([]byte("relation")))
		}
		relation, err := tx.CreateBucket([]byte("relation"))
		check(err)
		value := fmt.Sprint(number) + strings.Repeat(".", number%500)
		for n := 0; n < 10+number%90; n++ {
			check(relation.Put([]byte(fmt.Sprintf("shop/api-%02d", n)), []byte(value)))
		}
		ballast, err := tx.CreateBucketIfNotExists([]byte("ballast"))
		check(err)
		if number > 500 {
			return nil
		}
		return ballast.Put([]byte(fmt.Sprint(number)), make([]byte, 16<<10))
	}
}

func commit(db *bolt.DB) {
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(over)
	}()
	for number := 1; ; number++ {
		check(db.Update(replace(number)))
		if number == 1 {
			fmt.Println("committed")
		}
		// In bursts: in one a reader falls between two transactions, after it one is whole.
		var pause time.Duration
		if number%10 == 0 {
			pause = 10 * time.Millisecond
		}
		select {
		case <-over:
			return
		case <-time.After(pause):
		}
	}
}

func main() {
	what, path := os.Args[1], os.Args[2]
	options := &bolt.Options{}
	fill := terway
	if what == "nested" {
		options.PageSize, fill = 1024, nested
	}
	db, err := bolt.Open(path, 0o644, options)
	check(err)
	if what == "commit" {
		commit(db)
	} else {
		check(db.Update(func(tx *bolt.Tx) error { fill(tx); return nil }))
	}
	check(db.Close())
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
