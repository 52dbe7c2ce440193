"""The audit of one wheel, ELF file, folder or OCI archive."""

from __future__ import annotations

import csv
import io
import mmap
import re
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armbuild.artifact import variant, wheelfile
from armbuild.artifact.archives import TEXT_LIMIT
from armbuild.audit import allocator, code, gpu, stable_abi, wheel
from armbuild.audit.archive import ELF, LIBRARY, Archive, BrokenArchive, Member, copy
from armbuild.audit.effort import Effort
from armbuild.audit.elf import BrokenElf, Elf, broken_is_a_verdict, read_elf
from armbuild.audit.floor import Guard, built_in_guards, parse_floor, parse_guard
from armbuild.audit.hygiene import check_hygiene
from armbuild.audit.opening import kind_of, open_archive
from armbuild.audit.policy import check_policy
from armbuild.audit.report import AuditReport, ElfReport
from armbuild.audit.verdict import judge, lowest_core, verdicts
from armbuild.errors import UsageError, one_line
from armbuild.host import cache
from armisa.errors import IsaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_RECORD_LIMIT = 64 << 20  # a row for each of 200,000 files
_KEPT_LIMIT, _ALL_KEPT_LIMIT = 16 << 20, 64 << 20
"""Bytes of a document that the caller wants, and of all of them: of JSON, Python makes 25 times as many."""
_OPENMP = re.compile(r"lib(gomp|omp|iomp5)([-.]|$)")


def audit_path(
    path: Path | str,
    *,
    floor: str | None = None,
    guards: Iterable[str | Guard] = (),
    expect_targets: Iterable[str] | None = None,
    image: int = 0,
    keep: Callable[[str], bool] = lambda _name: False,
    effort: Effort | None = None,
) -> AuditReport:
    """Audit a wheel, an ELF file, a folder or an OCI archive.

    ``floor`` (a core, product, or compiler-style architecture) turns instructions above it into errors,
    unless a guard (``PATTERN=FEATURES``) covers their function or section; armllm's own wheel is always held
    to the baseline that its build_info.json states. ``expect_targets`` are the kernel targets that it must
    hold, no more and no fewer. ``image`` is the number of one in an OCI archive of several, which have the
    same ``effort``. The files whose names ``keep`` says yes to are in ``texts``. Raises UsageError for a
    path, floor or guard that makes no sense; whatever is wrong with the content is in ``errors``.
    """
    path = Path(path)
    parsed = (*built_in_guards(), *(parse_guard(item) if isinstance(item, str) else item for item in guards))
    if floor is not None:
        parse_floor(floor)
    kind = kind_of(path)
    try:
        with open_archive(path, kind, image) as archive:
            expected = None if expect_targets is None else tuple(expect_targets)
            run = _Run(archive, floor, parsed, expected, keep=keep, effort=effort or Effort())
            return replace(run.report(), image=image)
    except BrokenArchive as error:
        return AuditReport(
            path=path, kind=kind, size=path.stat().st_size, errors=(one_line(str(error)),), floor=floor
        )


class _Run:
    """One pass over an archive's members; what is found gathers in the lists."""

    def __init__(
        self,
        archive: Archive,
        floor: str | None,
        guards: tuple[Guard, ...],
        expected: tuple[str, ...] | None,
        *,
        keep: Callable[[str], bool],
        effort: Effort,
    ) -> None:
        self.archive = archive
        self.keep = keep
        self.has_code = False
        self.effort = effort
        self.floor = floor
        self.guards = guards
        self.expected = expected
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.files: list[ElfReport] = []
        self.contents = wheel.Contents()
        self.requested: dict[str, bytes] = {}
        self.wheel: wheelfile.FileName | None = None
        self.parts: dict[str, int] = {}
        self.own = False
        self.variant_floor: str | None = None

    def report(self) -> AuditReport:
        is_wheel = self.archive.kind == "wheel"
        if is_wheel:
            self._name()
            self._texts()
        self.own = "armllm/build_info.json" in self.contents.texts
        policy = None
        temporary_files = Path(tempfile.gettempdir())
        cache.remove_left(temporary_files, "armbuild-audit-????????")  # as they were called once
        with cache.scratch_folder(".armbuild-audit", temporary_files) as folder:
            # auditwheel unpacks the whole wheel; one with the ELF files alone says the same and costs less.
            elves = folder / variant.split(self.archive.path.with_suffix(".whl").name)[0]
            temporary = folder / "member.elf"
            with zipfile.ZipFile(elves, "w") as elf_wheel:
                for member in self.archive.members:
                    self._member(member, temporary, elf_wheel)
                records = csv.writer(buffer := io.StringIO())
                records.writerows((item.filename, "", "") for item in elf_wheel.infolist())
                elf_wheel.writestr("elves-0.dist-info/RECORD", buffer.getvalue())
            if self.wheel and not self.archive.problems:
                policy = self._policy(self.wheel, elves)
        self.errors[:0] = self.archive.problems
        info: dict[str, Any] | None = None
        if is_wheel:
            if self.wheel:
                self.errors.extend(wheel.check_metadata(self.wheel, self.contents))
                self.errors.extend(wheel.unloadable(self.wheel, self.contents))
                self.variant_floor, problems = wheel.variant_floor(self.wheel, self.contents)
                self.errors.extend(problems)
            self.errors.extend(wheel.check_record(self.contents))
            self.errors.extend(wheel.check_scripts(self.contents))
            info, problems = wheel.build_info(self.contents)
            self.errors.extend(problems)
        elif not self.files:
            self.warnings.append("no ELF file in it")
        targets = tuple(sorted({name for item in self.files for name in item.kernel_targets}))
        self._kernels(info, targets)
        self._openmp()
        return self._judged(
            AuditReport(
                path=self.archive.path,
                kind=self.archive.kind,
                size=sum(self.parts.values()) if self.archive.size is None else self.archive.size,
                tag=self.wheel.tag if self.wheel else None,
                files=tuple(self.files),
                kernel_targets=targets,
                policy=policy,
                parts=dict(sorted(self.parts.items(), key=lambda item: -item[1])),
                images=self.archive.images,
                texts=self.requested,
            ),
            info,
        )

    def _judged(self, report: AuditReport, info: dict[str, Any] | None) -> AuditReport:
        stated = str(info.get("baseline") or "") if info and self._machine() == "aarch64" else ""
        stated = self.variant_floor or stated  # which may allow less: properties don't name every feature
        try:
            baseline = parse_floor(stated) if stated else frozenset[str]()
        except (UsageError, IsaError) as error:
            self.errors.append(f"build_info.json states a baseline that is none: {error}")
            baseline, stated = frozenset(), ""
        floor = self.floor or stated or None
        allowed = parse_floor(floor) if floor else None
        needs, offences, doubts = judge(self.files, allowed, self.guards, baseline)
        if floor and offences:
            lacking = sorted({name for item in offences for name in item.missing})
            self.errors.append(
                f"{len(offences)} functions go beyond the floor {floor} unguarded, to {', '.join(lacking)}"
            )
        if doubts:
            self.warnings.append(
                f"{len(doubts)} places look like instructions above the floor among data: not counted"
            )
        arm = any(item.machine == "aarch64" for item in self.files)
        return replace(
            report,
            floor=floor,
            guards=tuple(f"{item.pattern}={'+'.join(sorted(item.extensions))}" for item in self.guards),
            offences=offences,
            doubts=doubts,
            needs_everywhere=needs.everywhere,
            needs_dispatched=needs.dispatched,
            needs_guarded=needs.guarded,
            cores=verdicts(needs) if arm else (),
            lowest_core=lowest_core(needs) if arm else "",
            errors=tuple(dict.fromkeys(map(one_line, self.errors))),
            warnings=tuple(dict.fromkeys(map(one_line, self.warnings))),
        )

    def _name(self) -> None:
        try:
            self.wheel = wheelfile.parse_name(self.archive.path.name)
        except UsageError as error:
            self.errors.append(str(error))

    def _texts(self) -> None:
        for member in self.archive.members:
            if not self.contents.wants_text(member.name):
                continue
            limit = _RECORD_LIMIT if member.name.endswith("/RECORD") else TEXT_LIMIT
            if member.size > limit:
                self.errors.append(f"{member.name}: refused: it has more than {limit >> 20} MiB")
            else:
                try:
                    with member.open() as stream:
                        self.contents.texts[member.name] = stream.read(limit)
                except Exception:  # noqa: BLE001, S112 - the main pass meets the same member and says what is wrong
                    continue

    def _member(self, member: Member, temporary: Path, elf_wheel: zipfile.ZipFile) -> None:
        name = member.name
        hashing = self.contents.hasher(name) if self.archive.kind == "wheel" else None
        keep = self._may_keep(name, member.size)
        copied = copy(self.archive, member, temporary, hashing, whole=keep)
        if copied is None:
            return
        size = copied.size
        self.contents.sizes[name] = size
        if hashing:
            self.contents.digests[name] = wheel.encoded(hashing.digest())
        part = name.partition("/")[0] if "/" in name else "."
        self.parts[part] = self.parts.get(part, 0) + size
        if member.mode & 0o002:
            self.warnings.append(f"{name}: writable by everybody")
        if member.mode & 0o6000:
            self.warnings.append(f"{name}: set-user or set-group bit")
        if keep:
            self.requested[name] = temporary.read_bytes()
        machines = self.wheel.machines if self.wheel and copied.head == LIBRARY else None
        if copied.head.startswith(ELF) or machines is not None:
            self.effort.spent["files"] += 1
            self.effort.check()
        if copied.head.startswith(ELF):
            self.has_code = True
            self._elf(name, temporary, size)
            if self.wheel:
                elf_wheel.write(temporary, name)
        elif machines is not None:
            self._library(name, temporary, machines)

    def _may_keep(self, name: str, size: int) -> bool:
        """Return whether a file's content goes into the report; too much of it is an error."""
        if not self.keep(name):
            return False
        if size > _KEPT_LIMIT or self.effort.kept_bytes + size > _ALL_KEPT_LIMIT:
            self.errors.append(f"{name}: refused: it, or all such files together, have too many bytes")
            return False
        self.effort.kept_bytes += size
        return True

    def _library(self, name: str, path: Path, machines: frozenset[str]) -> None:
        """Check that a static library's objects are for a machine of the wheel's tag, if that names one."""
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            foreign = next(
                (item for item in wheelfile.library_code(content) if machines and item[1] not in machines),
                None,
            )
        if foreign:
            tags = ", ".join(sorted(machines))
            self.errors.append(f"{name}({foreign[0]}): an object for {foreign[1]} in a wheel for {tags}")

    def _elf(self, name: str, path: Path, size: int) -> None:
        try:
            with broken_is_a_verdict():
                self._read_elf(name, path, size)
        except BrokenElf as error:
            self.errors.append(f"{name}: {error}")
            self.effort.spent["broken"] += 1
        self.effort.check()

    def _read_elf(self, name: str, path: Path, size: int) -> None:
        elf = read_elf(path)
        spent = self.effort.spent
        spent["sections"] += len(elf.sections)
        if elf.bits != 64 or not elf.little_endian:
            kind = f"{elf.bits}-bit {'little' if elf.little_endian else 'big'}-endian"
            self.errors.append(f"{name}: {kind} {elf.machine}: only 64-bit little-endian code is supported")
            return
        self._place(name, elf)
        errors, warnings = check_hygiene(name, path, elf, own=self.own)
        abi_errors, abi_warnings = stable_abi.check(name, path, self.wheel)
        self.errors.extend((*errors, *abi_errors))
        self.warnings.extend((*warnings, *abi_warnings))
        found = code.Code()
        if elf.machine == "aarch64":
            page_errors, page_warnings = allocator.check(name, path, elf)
            self.errors.extend(page_errors)
            self.warnings.extend(page_warnings)
            found = code.scan(path, elf)
            spent["work"] += found.work
            spent["uses"] += sum(len(function.uses) for function in found.functions)
        gpu_code, gpu_problems = gpu.read(path, elf)
        self.warnings.extend(f"{name}: {problem}" for problem in gpu_problems)
        spent["gpu entries"] += sum(item.count for item in gpu_code)
        self.files.append(
            ElfReport(
                name=name,
                size=size,
                machine=elf.machine,
                type=elf.type,
                needed=elf.needed,
                soname=elf.soname,
                runpath=elf.runpath,
                alignment=elf.alignment,
                debug=bool(elf.debug),
                kernel_targets=tuple(
                    sorted(
                        {
                            s.name.removeprefix("armllm.")
                            for s in elf.sections
                            if s.name.startswith("armllm.") and s.executable
                        }
                    )
                ),
                functions=tuple(found.functions),
                words=found.words,
                known_functions=found.known_functions,
                self_checked=found.self_checked,
                gpu_code=gpu_code,
            )
        )

    def _place(self, name: str, elf: Elf) -> None:
        """Check that this machine's code belongs here: tag and module suffix must say so too."""
        if self.wheel:
            if not self.wheel.machines:
                self.errors.append(
                    f"{name}: an ELF file for {elf.machine} in a wheel whose tag says any machine"
                )
            elif self.wheel.machines != {elf.machine}:
                tags = ", ".join(sorted(self.wheel.machines))
                self.errors.append(f"{name}: an ELF file for {elf.machine} in a wheel for {tags}")
        if problem := wheel.extension_problem(name, elf.machine, self.wheel):
            self.errors.append(f"{name}: {problem}")

    def _policy(self, name: wheelfile.FileName, elves: Path) -> Any:
        platforms = frozenset(tag.platform for tag in name.tags)
        machine = self._machine()
        if (
            machine is None
            or platforms == {"any"}
            or not all(wheelfile.machine_of(tag) == machine for tag in platforms)
        ):
            if not self.has_code and platforms != {"any"}:
                self.errors.append("no ELF file in a wheel whose tag names a machine")
            return None
        policy, errors, warnings = check_policy(elves, platforms, machine)
        self.errors.extend(errors)
        self.warnings.extend(warnings)
        return policy

    def _machine(self) -> str | None:
        machines = {item.machine for item in self.files}
        return machines.pop() if len(machines) == 1 else None

    def _kernels(self, info: dict[str, Any] | None, targets: tuple[str, ...]) -> None:
        """Check armllm's own wheel: what build_info.json and the caller promise is what the sections hold."""
        if self.expected is not None and set(targets) != set(self.expected):
            self.errors.append(
                f"kernel targets: expected {_list(self.expected)}, the wheel's sections hold {_list(targets)}"
            )
        if not info:
            return
        stated = info.get("targets")
        if isinstance(stated, list) and set(map(str, stated)) != set(targets):
            self.errors.append(
                f"kernel targets: build_info.json says {_list(map(str, stated))}, the code {_list(targets)}"
            )
        if info.get("machine") != self._machine():
            self.errors.append(
                f"build_info.json says {info.get('machine')}, the code is for {self._machine()}"
            )
        baseline = str(info.get("baseline", ""))
        if self.wheel and str(info.get("version", "")).partition("+")[0] != self.wheel.version.public:
            self.errors.append(
                f"build_info.json says version {info.get('version')}, the wheel {self.wheel.version}"
            )
        if self.wheel and self._machine() == "aarch64" and not wheel.tells_baseline(self.wheel, baseline):
            label = self.wheel.variant or self.wheel.version.local
            kind = "variant" if self.wheel.variant else "version's local"
            self.errors.append(
                f"the baseline is {baseline}, the {kind} label {label or 'missing'}: they must agree"
            )

    def _openmp(self) -> None:
        runtimes = sorted({item.name for item in self.files if _OPENMP.match(item.name.rpartition("/")[2])})
        if len(runtimes) > 1:
            self.warnings.append(
                f"more than one OpenMP runtime inside ({', '.join(runtimes)}): their threads compete"
            )


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
