# SPDX-License-Identifier: Apache-2.0
# Building for another architecture, with Debian's cross compiler and that architecture's packages unpacked beside this
# machine's: it need not be made multi-arch. Sourced by image.sh.

cross_libraries=(liburing-dev libnghttp2-dev libprotobuf-c-dev libblkid-dev libmd-dev libbpf-dev libjansson-dev libssl-dev libcryptsetup-dev)

# cross_ensure ARCH TRIPLET DIR: leaves DIR/cross.ini for meson.
cross_ensure() {
	local arch=$1 triplet=$2 dir=$PWD/$3 compiler=gcc-${2//_/-}
	local sysroot=$dir/sysroot cpu=${triplet%%-*}
	command -v "$triplet-gcc" >/dev/null || deps_apt_install "$compiler" "libc6-dev-$arch-cross" ||
		die "no compiler for $arch: the package $compiler cannot be installed"
	if ! grep -qsxF "# ${cross_libraries[*]}" "$dir/cross.ini"; then
		say "unpacking ${cross_libraries[*]} for $arch"
		python3 scripts/image/sysroot.py "$sysroot" --cache ".cache/image/$arch" --arch "$arch" "${cross_libraries[@]}"
		rm -rf "$dir/build"
		cat >"$dir/cross.ini.new" <<-END
			# ${cross_libraries[*]}
			[binaries]
			c = '$triplet-gcc'
			ar = '$triplet-ar'
			strip = '$triplet-strip'
			pkg-config = 'pkg-config'
			pkgconfig = 'pkg-config'
			[properties]
			sys_root = '$sysroot'
			pkg_config_libdir = '$sysroot/usr/lib/$triplet/pkgconfig:$sysroot/usr/share/pkgconfig'
			[built-in options]
			c_args = ['-isystem', '$sysroot/usr/include', '-isystem', '$sysroot/usr/include/$triplet',
			  '-ffile-prefix-map=$PWD=.']
			c_link_args = ['-L$sysroot/usr/lib/$triplet', '-Wl,-rpath-link,$sysroot/usr/lib/$triplet']
			[host_machine]
			system = 'linux'
			cpu_family = '$cpu'
			cpu = '$cpu'
			endian = 'little'
		END
		mv "$dir/cross.ini.new" "$dir/cross.ini"
	fi
}
