"""The facts about a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from armisa import cpuinfo, tables
from armisa.errors import IsaError
from armisa.flags import COMPILERS, compiler_flags, x86_level
from armisa.kernels import select_kernels


@dataclass(frozen=True, kw_only=True)
class Core:
    """``count`` equal cores.

    The numbers are the fields of MIDR_EL1. ``name`` is None if no table has the core.
    """

    implementer: int
    part: int
    variant: int
    revision: int
    name: str | None
    count: int
    performance: bool

    @property
    def label(self) -> str:
        """The core's name, or its numbers."""
        return self.name or f"unknown core (implementer 0x{self.implementer:02x}, part 0x{self.part:03x})"


@dataclass(frozen=True, kw_only=True)
class Isa:
    """What a CPU can do.

    - ``features``: the names in /proc/cpuinfo that all cores share.
    - ``sve_vector_bits``, ``sme_vector_bits``: vector lengths in bits, None if there is no such unit.
    - ``threads``: the number of compute threads to use, 0 if unknown.
    - ``page_size``, ``memory_bytes``: in bytes, None if unknown.
    """

    machine: str
    cores: tuple[Core, ...] = ()
    products: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()
    sve_vector_bits: int | None = None
    sme_vector_bits: int | None = None
    page_size: int | None = None
    numa_nodes: int | None = None
    architecture: str | None = None
    emulated: bool = False
    threads: int = 0
    binding: str | None = None
    kernel_version: str | None = None
    memory_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def from_target(cls, name: str) -> Isa:
        """Return the facts about the core or product ``name``. Raises IsaError with similar names.

        Case and punctuation make no difference: neoverse-v1, "Neoverse V1", graviton3, "Raspberry Pi 4".
        ``max`` is QEMU's.
        """
        target = tables.find_target(name)
        products: tuple[str, ...] = ()
        if isinstance(target, tables.CoreType):
            types, counts, title = [target], [0], target.name
            features = target.features
        else:
            types = [core for wanted in target.cores for core in tables.core_types() if core.name == wanted]
            counts, title = list(target.cores.values()), target.name
            shared = frozenset.intersection(*(core.features for core in types))
            features, products = (shared | target.features_with) - target.features_without, (target.name,)
        mixed = any(core.little for core in types) and not all(core.little for core in types)
        notes = [f"described from the table entry of {title}, nothing was measured"]
        if any(core.sve or core.sme for core in types):
            notes.append("vector lengths are the core's own; a system may limit them")
        return cls(
            machine="aarch64",
            cores=tuple(
                Core(
                    implementer=core.implementer,
                    part=core.parts[0],
                    variant=0,
                    revision=0,
                    name=core.name,
                    count=count,
                    performance=not (mixed and core.little),
                )
                for core, count in zip(types, counts, strict=True)
            ),
            products=products,
            features=features,
            sve_vector_bits=types[0].sve if "sve" in features else None,
            sme_vector_bits=types[0].sme if "sme" in features else None,
            architecture=tables.architecture_of(features),
            threads=sum(
                count for core, count in zip(types, counts, strict=True) if not (mixed and core.little)
            ),
            notes=tuple(notes),
        )

    @classmethod
    def from_cpuinfo(
        cls, text: str, *, hwcap: int | None = None, hwcap2: int | None = None, hwcap3: int | None = None
    ) -> Isa:
        """Return the facts in a copy of /proc/cpuinfo, with the auxiliary vector's words if known.

        Raises IsaError if ``text`` is not the cpuinfo of an AArch64 or x86-64 machine.
        """
        parsed = cpuinfo.parse(text)
        features, notes = reconcile(parsed.features, {"hwcap": hwcap, "hwcap2": hwcap2, "hwcap3": hwcap3})
        return assemble(
            machine=parsed.machine,
            midrs=parsed.midrs,
            features=features,
            model=parsed.model,
            notes=(*parsed.notes, *notes),
        )

    def kernels(self, available: frozenset[str] | None = None) -> dict[str, str]:
        """Return for each op the kernel target that this CPU runs it with."""
        return select_kernels(self.features, self.machine, available, sve_bits=self.sve_vector_bits)

    def as_dict(self) -> dict[str, Any]:
        """Return the document of ``armbuild detect --json`` (docs/schema/detect.json)."""
        return {
            "schema": 1,
            "machine": self.machine,
            "cores": [
                {
                    "implementer": f"0x{core.implementer:02x}",
                    "part": f"0x{core.part:03x}",
                    "variant": f"0x{core.variant:x}",
                    "revision": core.revision,
                    "name": core.name,
                    "count": core.count,
                    "performance": core.performance,
                }
                for core in self.cores
            ],
            "products": list(self.products),
            "features": sorted(self.features),
            "sve_vector_bits": self.sve_vector_bits,
            "sme_vector_bits": self.sme_vector_bits,
            "page_size": self.page_size,
            "numa_nodes": self.numa_nodes,
            "architecture": self.architecture,
            "kernels": self.kernels(),
            "flags": {compiler: compiler_flags(self, compiler) for compiler in COMPILERS},
            "emulated": self.emulated,
            "threads": self.threads,
            "binding": self.binding,
            "kernel_version": self.kernel_version,
            "memory_bytes": self.memory_bytes,
            "notes": list(self.notes),
        }


def reconcile(
    listed: frozenset[str], capabilities: dict[str, int | None]
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the features that cpuinfo and the auxiliary vector confirm, and notes on disagreement.

    The auxiliary vector is the kernel's promise to programs, so it decides for the words that are given;
    cpuinfo is text that containers and emulators replace.
    """
    bits = tables.hwcap_bits()
    features = set(listed)
    notes = []
    for word, value in capabilities.items():
        if value is None:
            continue
        if value < 0 or value >= 1 << 64:
            raise IsaError(f"--{word} {value:#x} is not a 64-bit number")
        promised = {name for bit, name in bits[word].items() if value >> bit & 1}
        known = set(bits[word].values())
        if missing := sorted(promised - features):
            if listed:
                notes.append(f"{word} has {', '.join(missing)}, /proc/cpuinfo does not list them: used")
            features |= promised
        if extra := sorted((features & known) - promised):
            notes.append(f"/proc/cpuinfo lists {', '.join(extra)}, {word} does not have them: not used")
            features -= set(extra)
        if unknown := [bit for bit in range(64) if value >> bit & 1 and bit not in bits[word]]:
            notes.append(f"{word} has bits without a known name: {', '.join(map(str, unknown))}")
    return frozenset(features), tuple(notes)


def assemble(
    *,
    machine: str,
    midrs: tuple[int, ...],
    features: frozenset[str],
    capacities: tuple[int, ...] = (),
    model: str | None = None,
    vendor: str | None = None,
    notes: tuple[str, ...] = (),
    **measured: Any,
) -> Isa:
    """Put names to numbers: cores, performance cores, products and architecture level from what was read.

    ``midrs`` and ``capacities`` (Linux's cpu_capacity) have one entry per CPU; either may be empty.
    ``measured`` are further fields of Isa, which win over what the tables say.
    """
    if machine == "x86_64":
        return Isa(
            machine=machine, features=features, architecture=x86_level(features), notes=notes, **measured
        )
    cores = _cores(midrs, capacities)
    extra = [
        f"{core.label} is in no table of armbuild: named by its numbers, its features are used all the same"
        for core in cores
        if core.name is None
    ]
    known = [tables.find_core(core.implementer, core.part) for core in cores if core.performance]
    for field, feature in (("sve_vector_bits", "sve"), ("sme_vector_bits", "sme")):
        if feature in features and field not in measured:
            lengths = {getattr(core, feature) for core in known if core}
            measured[field] = lengths.pop() if len(lengths) == 1 else None
            extra.append(
                f"{feature.upper()} vector length taken from the core's table entry, not measured"
                if measured[field]
                else f"{feature.upper()} vector length unknown"
            )
    architecture = tables.architecture_of(features)
    if architecture is None:
        extra.append("no floating point or no Advanced SIMD reported: nothing of armllm runs here")
    measured.setdefault("threads", sum(core.count for core in cores if core.performance))
    return Isa(
        machine=machine,
        cores=cores,
        products=_products(cores, model, vendor),
        features=features,
        architecture=architecture,
        notes=(*notes, *extra),
        **measured,
    )


def _cores(midrs: tuple[int, ...], capacities: tuple[int, ...]) -> tuple[Core, ...]:
    counts: dict[int, int] = {}
    capacity: dict[int, int] = {}
    for index, midr in enumerate(midrs):
        counts[midr] = counts.get(midr, 0) + 1
        if index < len(capacities):
            capacity[midr] = max(capacity.get(midr, 0), capacities[index])
    types = {midr: tables.find_core(midr >> 24 & 0xFF, midr >> 4 & 0xFFF) for midr in counts}
    little = {midr for midr, core in types.items() if core and core.little}
    # Of unknown parts the scheduler's view decides: below half of the fastest core's capacity is little.
    fastest = max(capacity.values(), default=0)
    little |= {
        midr for midr, core in types.items() if core is None and capacity.get(midr, fastest) * 2 < fastest
    }
    if len(little) == len(counts):
        little = set()
    cores = [
        Core(
            implementer=midr >> 24 & 0xFF,
            part=midr >> 4 & 0xFFF,
            variant=midr >> 20 & 0xF,
            revision=midr & 0xF,
            name=core.name if core else None,
            count=counts[midr],
            performance=midr not in little,
        )
        for midr, core in types.items()
    ]
    return tuple(sorted(cores, key=lambda core: (not core.performance, -core.part)))


def _products(cores: tuple[Core, ...], model: str | None, vendor: str | None) -> tuple[str, ...]:
    names = {core.name for core in cores}
    matching = [product for product in tables.products() if set(product.cores) == names]
    if by_model := [item for item in matching if item.model and model and item.model in model]:
        return tuple(item.name for item in by_model)
    if by_vendor := [item for item in matching if item.dmi and vendor and vendor.startswith(item.dmi)]:
        return tuple(item.name for item in by_vendor)
    if vendor and any(vendor.startswith(item.dmi) for item in tables.products() if item.dmi):
        matching = [item for item in matching if not item.dmi]
    return tuple(item.name for item in matching if not (item.model and model))
