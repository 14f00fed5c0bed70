#!/bin/sh
# Remove files from an image's root that serving does not need: installers, build tools, documents and unused parts of
# Python. The rest is then copied into an empty image, so that no lower layer has the removed files. Run by the
# Dockerfile, in the image.
set -eu

# Debian's packages, if the image has them. dpkg removes them, so that its records stay correct for scanners.
installed=$(dpkg-query --show --showformat '${Package}\n')
for package in apt gpgv libapt-pkg6.0 libapt-pkg7.0 debian-archive-keyring adduser \
    perl perl-base libperl5.36 libperl5.40 perl-modules-5.36 perl-modules-5.40 libgdbm6 libgdbm-compat4 \
    e2fsprogs libext2fs2 libss2 logsave mount login \
    python3-pip python3-setuptools python3-setuptools-whl python3-pip-whl python3-wheel \
    python3-pkg-resources python3-venv python3.11-venv python3-distutils python3-lib2to3; do
    if echo "$installed" | grep -qx "$package"; then
        dpkg --purge --force-depends --force-remove-essential --force-remove-protected "$package" \
            >/dev/null 2>&1 || true # their scripts may fail without perl and apt
    fi
done

# Files of Python itself, and of pip.
for lib in /usr/local/lib/python3.* /usr/lib/python3.* /usr/lib/python3; do
    [ -d "$lib" ] || continue
    for name in ensurepip idlelib lib2to3 pydoc_data test tkinter turtledemo distutils/command \
        turtle.py config-3.*; do
        # shellcheck disable=SC2086,SC2115  # the pattern must be expanded, and is never empty
        rm -rf "$lib"/$name
    done
    for packages in "$lib/site-packages" "$lib/dist-packages"; do
        rm -rf "$packages"/pip "$packages"/pip-* "$packages"/setuptools "$packages"/setuptools-* \
            "$packages"/wheel "$packages"/wheel-* "$packages"/pkg_resources "$packages"/_distutils_hack
    done
done
rm -rf /usr/local/bin/pip* /usr/local/bin/idle* /usr/local/bin/pydoc* /usr/local/bin/2to3* \
    /usr/local/bin/wheel /usr/local/include /usr/local/lib/pkgconfig /usr/bin/pip* /usr/share/python-wheels

# Papers, translations, records of the build.
rm -rf /usr/share/doc /usr/share/man /usr/share/info /usr/share/lintian /usr/share/locale \
    /usr/share/perl* /usr/lib/*-linux-gnu/perl* /usr/lib/apt /usr/include /usr/lib/*-linux-gnu/gconv \
    /var/lib/apt /var/cache/* /var/log/* /tmp/* /root/.cache /etc/apt /etc/ssl/private
