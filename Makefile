# The commands of the project. Each one creates what it needs: nothing but Python 3.11+ and make has to be there.
VENV ?= .venv
OUT ?= runs/demo
MINUTES ?= 8
# The first Python on the path that is new enough; `make PYTHON=/path/to/python test` chooses another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)

RUN = $(VENV)/bin/python -m
KERNELS = $(wildcard src/regard/ops/kernels/csrc/*)
INSTALL = $(RUN) pip install --disable-pip-version-check

.PHONY: help demo test check format data slow trust gpu coverage tables draw docs clean

help:
	@echo "make demo    install, train a small attention model on generated dates, show what it attended to"
	@echo "make test    the default tests: no network, no GPU, a quarter of an hour on 2 cores"
	@echo "make check   ruff, formatting, pyright"
	@echo "make format  format the code as make check expects"
	@echo "make data    the tests on real data; REGARD_DATA=FOLDER says where it is"
	@echo "make slow    the tests that take longer"
	@echo "make trust   robustness tests with injected faults; writes the table of docs/trust.md, up to an hour"
	@echo "make gpu     on a machine with a CUDA device: its tests and benchmarks, in MINUTES (8), with the Python on the path"
	@echo "make coverage  which lines of src the default tests run, by package; writes the table of CONTRIBUTING.md, up to half an hour"
	@echo "make draw    the pictures of docs/: the weights of every mechanism, the plots of docs/results"
	@echo "make docs    the documentation as a site in build/site: pages, API, search; without a network once its packages are there"
	@echo "make tables  write the tables of README.md and docs/ from docs/results/*.json"
	@echo "make clean   remove the environment and all caches; trained runs stay"

demo: $(VENV)/.installed
	$(RUN) regard demo --out $(OUT)

test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(RUN) pytest -n 2 --dist loadfile --no-loadscope-reorder

check: $(VENV)/.installed-dev
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) pyright --pythonpath $(VENV)/bin/python

format: $(VENV)/.installed-dev
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

data: $(VENV)/.installed-dev
	@test -d "$$REGARD_DATA" || { echo "make data: REGARD_DATA='$$REGARD_DATA' is not a folder; name the one that holds the data sets"; exit 2; }
	$(RUN) pytest -m data

slow: $(VENV)/.installed-dev
	$(RUN) pytest -m slow

trust: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 REGARD_TRUST=full REGARD_TRUST_TABLE=docs/results/trust.json $(RUN) pytest -n 3 --dist loadfile tests/trust; \
		code=$$?; $(VENV)/bin/python benchmarks/fill_tables.py; exit $$code

# In the Python of the machine, which has a torch for its device; nothing is downloaded.
gpu:
	@$(PYTHON) -c "import torch; assert torch.cuda.is_available()" 2>/dev/null || { \
		echo "make gpu: $(PYTHON) has no torch that finds a CUDA device; nothing was installed or run." >&2; \
		echo "PYTHON=... names another Python. docs/performance.md, On a GPU, says what a rehearsal on a CPU needs." >&2; exit 1; }
	$(PYTHON) -m pip install --disable-pip-version-check --no-index --no-deps --no-build-isolation -e .
	$(PYTHON) benchmarks/gpu.py --minutes $(MINUTES) --out docs/results $(if $(REGARD_DATA),--data $(REGARD_DATA)/multi30k/task1/raw); \
		code=$$?; $(PYTHON) benchmarks/fill_tables.py && exit $$code  # what the stages that did not fail have measured is shown

coverage: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(RUN) pytest -n 2 --dist loadfile -p pytest_cov --cov=regard --cov-report=json:.coverage.json
	$(VENV)/bin/python benchmarks/coverage_table.py .coverage.json
	$(VENV)/bin/python benchmarks/fill_tables.py

tables: $(VENV)/.installed-dev
	$(VENV)/bin/python benchmarks/fill_tables.py

draw: $(VENV)/.installed-dev
	$(VENV)/bin/python benchmarks/mechanism_pictures.py
	$(VENV)/bin/python benchmarks/plots.py

docs: $(VENV)/.installed-docs runs/demo/model.html
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict
	@echo "build/site/index.html; to read it with the search: $(RUN) http.server --directory build/site"

# The live model of the front page is that of the demonstration, which is trained where it is not there.
runs/demo/model.html: | $(VENV)/.installed-docs
	test -f runs/demo/result.json || $(RUN) regard demo --out runs/demo
	$(RUN) regard export runs/demo/run --format html --out $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps keep an installation from being repeated; a change of what it is built from brings it back.
$(VENV)/.installed: pyproject.toml setup.py $(KERNELS)
	$(new_environment)
	@echo "Installing Regard into $(VENV) and compiling its native code: a minute or two. Afterwards: source $(VENV)/bin/activate"
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml setup.py $(KERNELS)
	$(new_environment)
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml setup.py $(KERNELS)
	$(new_environment)
	$(INSTALL) -e '.[docs]'
	@touch $@ $(VENV)/.installed

define new_environment
@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || { \
	echo "Regard needs Python 3.11 or newer (found: $$($(or $(PYTHON),python3) --version 2>&1)). Install one, then: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; \
	exit 2; }
"$(PYTHON)" -m venv $(VENV)
endef
