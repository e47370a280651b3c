#!/usr/bin/env bash
# Copyright The Lockstep Authors.
# SPDX-License-Identifier: Apache-2.0

# Builds everything that a release of Lockstep publishes, from a checkout, in the new folder OUT:
#
#   VERSION=v0.1.0 tools/release/release.sh
#
# The same commit and version make the same bytes: timestamps are the commit's. Nothing is published or signed; docs/releasing.md says
# which workflow does. SNAPSHOT=1 builds a checkout with changes, for tests.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=${VERSION:-}
image=${IMAGE:-ghcr.io/lockstep-rollouts/lockstep}
out=${OUT:-dist}
read -ra platforms <<<"${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64}"

fail() {
	echo "release: $*" >&2
	exit 1
}

# archive is tar whose bytes depend on the files and the date only.
archive() {
	tar --create --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$date" "$@"
}

# replace replaces the end of one line of a file. A changed default would silently leave the file as it is.
replace() {
	[[ $(grep -c -- "$2\$" "$1") == 1 ]] || fail "$1 has not one line that ends in '$2'"
	sed -i "s|$2\$|$3|" "$1"
}

[[ $version =~ ^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$ ]] ||
	fail "the version is '$version': want a semantic version such as v0.1.0"
# Untracked files count too: the build may read them.
changes=$(git status --porcelain)
[[ -z $changes || -n ${SNAPSHOT:-} ]] || fail "a release is built from a commit, and these files differ from it:"$'\n'"$changes"
commit=$(git log -1 --format=%H)
date=$(git log -1 --format=%ct)
work=$(mktemp -d)
mkdir "$out" # an existing folder could have files of another release
trap 'code=$?; rm -rf "$work"; [[ $code == 0 ]] || rm -rf "$out"' EXIT
cp LICENSE "$out/LICENSE"

layers=()
for platform in "${platforms[@]}"; do
	os=${platform%/*} arch=${platform#*/}
	binary=$out/lockstep_${os}_$arch
	[[ $os != windows ]] || binary+=.exe
	# The builder's own flags must not change the bytes. A build id and paths differ between machines.
	CGO_ENABLED=0 GOFLAGS='' GOWORK=off GOOS=$os GOARCH=$arch go build -trimpath -buildvcs=false -gcflags=all=-dwarf=false \
		-ldflags="-s -w -buildid= -X github.com/lockstep-rollouts/lockstep/internal/cli.buildVersion=$version" -o "$binary" ./cmd/lockstep
	[[ $os == linux ]] || continue
	# The image has the binary and its license only.
	mkdir "$work/$arch"
	install -m 755 "$binary" "$work/$arch/lockstep"
	cp LICENSE "$work/$arch"
	archive --file="$work/$arch.tar" --directory="$work/$arch" LICENSE lockstep
	layers+=("$platform=$work/$arch.tar")
	# Without a random serial number and the time. The SBOM has a checksum of the tool, which these flags make the same everywhere.
	CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false' go tool -modfile=tools/sbom/go.mod cyclonedx-gomod \
		bin -json -noserial -notimestamp -std -version "$version" -output "$binary.cdx.json" "$binary"
done
digest=$(go run ./tools/release -out "$out/image" -version "$version" -commit "$commit" -date "$date" "${layers[@]}")
pinned=$image:$version@$digest
echo "$pinned" >"$out/image-digest.txt"

# The chart and the kustomizations, with the image pinned by version and digest. Links become the files that they name.
cp -rL config/chart "$work/lockstep"
find "$work/lockstep" \( -name kustomization.yaml -o -name .helmignore \) -delete
replace "$work/lockstep/Chart.yaml" 'version: 0.0.0' "version: ${version#v}"
replace "$work/lockstep/Chart.yaml" 'appVersion: 0.0.0' "appVersion: $version"
replace "$work/lockstep/values.yaml" 'repository: ghcr.io/lockstep-rollouts/lockstep' "repository: $image"
replace "$work/lockstep/values.yaml" 'digest: ""' "digest: $digest"
archive --directory="$work" lockstep | gzip -n >"$out/lockstep-${version#v}.tgz"
cp -rL config "$work/config"
rm -r "$work/config/chart"
find "$work/config" -name '*.go' -delete
# Without a pin, the manifests would silently use an image of another name.
grep -rlZ ' image: lockstep$' "$work/config" | xargs -0 sed -i "s| image: lockstep\$| image: $pinned|"
archive --directory="$work" config | gzip -n >"$out/kustomize.tar.gz"

# As sha256sum checks them.
(cd "$out" && find . -type f ! -name checksums.txt -printf '%P\0' | LC_ALL=C sort -z | xargs -0 sha256sum >"$work/checksums.txt")
cp "$work/checksums.txt" "$out"
