# Installation and packages; part of the Makefile. docs/how-to/install.md, docs/reference/packages.md.

PREFIX  ?= /usr/local
DESTDIR ?=
# Cargo's profile of what is installed and packaged; `quick` builds in a fifth of the time.
PROFILE ?= release
KEY     ?=

SHIPPED    = timevisor timevisord timevisor-guest timevisor-bus
DEBS       = timevisor timevisor-guest timevisor-bus libtimevisor0 libtimevisor-dev
RPMS       = timevisor timevisor-guest
INSTALLED  = timevisor timevisor-guest timevisor-bus

TARGET_DIR = $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
# Its own folder: paths are taken out of what is shipped, which other builds do not do.
BUILD_DIR  = $(TARGET_DIR)/shipped
BUILT      = $(BUILD_DIR)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
PACKAGES   = $(TARGET_DIR)/packages

NUMBER     := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# The commit and its time; in a tarball of `git archive` from packaging/commit.
COMMIT     := $(shell git log -1 --abbrev=12 --format='%h %ct' 2>/dev/null || sed '/Format/d' packaging/commit)
export SOURCE_DATE_EPOCH ?= $(or $(word 2,$(COMMIT)),0)
SHOWN      = $(NUMBER)$(if $(COMMIT), ($(firstword $(COMMIT))))
CARGO_HOME ?= $(HOME)/.cargo
REMAP      = --remap-path-prefix=$(CURDIR)=/usr/src/timevisor --remap-path-prefix=$(CARGO_HOME)=/usr/src/cargo \
             --remap-path-prefix=$(BUILD_DIR)=/usr/src/build

.PHONY: shipped c-files install uninstall packages debs rpms wheel sbom sums sign reproducible

shipped:
	@$(STEP) "the programs, profile $(PROFILE)" env TIMEVISOR_VERSION="$(SHOWN)" RUSTFLAGS="$(REMAP)" CARGO_TARGET_DIR="$(BUILD_DIR)" \
	  $(CARGO) build --quiet --locked --workspace --profile $(PROFILE) $(SHIPPED:%=--bin %)

install: shipped ## Programs, units, manual pages, completions: make install DESTDIR= PREFIX=/usr/local (the C library: make -C clients/c install)
	@PREFIX="$(PREFIX)" PROGRAMS="$(BUILT)" packaging/stage "$(DESTDIR)/" $(INSTALLED)
	@echo "installed below $(DESTDIR)$(PREFIX); docs/how-to/install.md says what to start"

uninstall: ## Removes what `make install` installed; changed files below /etc stay
	@PREFIX="$(PREFIX)" packaging/stage --remove "$(DESTDIR)/" $(INSTALLED)

packages: debs rpms wheel sbom sums ## .deb, .rpm, Python wheel, SBOM and checksums in target/packages (PROFILE=release)
	@ls -l "$(PACKAGES)"

c-files:
	@$(STEP) "libtimevisor" env RUSTFLAGS="$(REMAP)" CARGO_TARGET_DIR="$(BUILD_DIR)" $(MAKE) --silent -C clients/c install \
	  DESTDIR="$(BUILD_DIR)/c" PREFIX=/usr LIBDIR=/usr/lib/$$(dpkg-architecture -qDEB_HOST_MULTIARCH) PROFILE=$(if $(filter release,$(PROFILE)),library,$(PROFILE))

# libtimevisor is built only where a package needs it.
debs: shipped $(if $(filter libtimevisor%,$(DEBS)),c-files)
	@$(STEP) "Debian packages" env PROGRAMS="$(BUILT)" C_FILES="$(BUILD_DIR)/c/usr/lib/$$(dpkg-architecture -qDEB_HOST_MULTIARCH)" \
	  packaging/debs "$(PACKAGES)" $(DEBS)

rpms: shipped
	@$(STEP) "RPM packages" env PROGRAMS="$(BUILT)" packaging/rpms "$(PACKAGES)" $(RPMS)

wheel:
	@mkdir -p "$(PACKAGES)"
	@$(STEP) "the Python wheel" env WHEEL_ONLY=1 PROFILE=$(PROFILE) PYTHON=/usr/bin/python3 clients/python/test.sh
	@cp "$(TARGET_DIR)"/python/wheels/*.whl "$(PACKAGES)/"

sbom: ## What the packages are made of: CycloneDX JSON of every crate, from Cargo.lock
	@mkdir -p "$(PACKAGES)"
	@$(STEP) "SBOM" python3 -B packaging/sbom.py write "$(PACKAGES)/timevisor-$(NUMBER).cdx.json"

sums:
	@cd "$(PACKAGES)" && rm -f SHA256SUMS SHA256SUMS.sig && LC_ALL=C sha256sum *.deb *.rpm *.whl *.cdx.json >SHA256SUMS

sign: ## Signs target/packages/SHA256SUMS: make sign KEY=~/.ssh/id_ed25519
	@test -n "$(KEY)" || { echo "which key? make sign KEY=~/.ssh/id_ed25519 (ssh-keygen -t ed25519 makes one)"; exit 2; }
	@ssh-keygen -q -Y sign -f "$(KEY)" -n timevisor-packages "$(PACKAGES)/SHA256SUMS"
	@echo "signed: $(PACKAGES)/SHA256SUMS.sig; publish $(KEY).pub beside your site's other keys"

reproducible: ## Builds the Debian packages twice, in different folders, and compares them (PROFILE=quick takes a fifth of the time)
	@packaging/reproducible $(PROFILE)
