#include "simulator/checked_device.h"

#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <utility>

#include "base/bytes.h"
#include "kernels/kernel_table.h"
#include "simulator/guarded_memory.h"

namespace fsdp::testing {
namespace {

// An event of a checked stream. It holds an event of the host's stream, and the clock of the work
// that the event orders before a waiter.
struct CheckedMark final : EventMark {
  CheckedMark(RaceCheck& of, Event event, RaceCheck::Clock seen)
      : check(of), inner(std::move(event)), clock(std::move(seen)) {}
  void wait() override {
    inner.synchronize();
    check.host_waits(clock);
  }
  bool reached() override { return inner.reached(); }

  RaceCheck& check;
  Event inner;
  const RaceCheck::Clock clock;
};

constexpr int64_t kFloat = size_of(DType::kFloat32);

// Throws unless each pointer is null or in guarded memory. Used for arguments that LibTorch's
// operators do not allocate, because on a real device they must be device memory.
void require_device_memory(std::initializer_list<const void*> pointers) {
  for (const void* each : pointers) {
    if (each == nullptr || GuardedMemory::instance().holds(each)) continue;
    throw std::logic_error("a kernel was given the host's memory for the device's");
  }
}

TouchedBytes reads(const void* data, int64_t bytes) { return {data, data == nullptr ? 0 : bytes}; }
TouchedBytes writes(const void* data, int64_t bytes) {
  return {data, data == nullptr ? 0 : bytes, true};
}

// Returns the bytes from the lowest to the highest element of a strided source.
TouchedBytes reads(const kernels::StridedSource& source) {
  int64_t low = 0, high = 0;
  for (int dim = 0; dim < source.dims; ++dim) {
    const int64_t span = (source.sizes[dim] - 1) * source.strides[dim];
    (span < 0 ? low : high) += span;
  }
  const int64_t size = size_of(source.dtype);
  const auto* data = static_cast<const std::byte*>(source.data);
  return {data + low * size, source.numel() == 0 ? 0 : (high - low + 1) * size};
}

template <class Run>
std::vector<TouchedBytes> of_copies(std::span<const Run> runs) {
  std::vector<TouchedBytes> bytes;
  for (const Run& run : runs) {
    bytes.push_back(reads(run.source, run.numel * size_of(run.source_dtype)));
    bytes.push_back(writes(run.destination, run.numel * size_of(run.destination_dtype)));
  }
  return bytes;
}

std::vector<TouchedBytes> of_fills(std::span<const kernels::FillRun> runs) {
  std::vector<TouchedBytes> bytes;
  for (const auto& run : runs) bytes.push_back(writes(run.data, run.numel * size_of(run.dtype)));
  return bytes;
}

std::vector<TouchedBytes> of_update(std::span<const kernels::UpdateSegment> segments,
                                    const kernels::UpdateScalars& scalars) {
  require_device_memory({scalars.grad_scale, scalars.found_inf});
  std::vector<TouchedBytes> bytes{reads(scalars.grad_scale, kFloat),
                                  reads(scalars.found_inf, kFloat)};
  for (const kernels::UpdateSegment& each : segments) {
    require_device_memory(
        {each.param, each.grad, each.low_precision_copy, each.step, each.trust_ratio});
    bytes.push_back(reads(each.trust_ratio, kFloat));
    bytes.push_back(writes(each.param, each.numel * kFloat));
    bytes.push_back(reads(each.grad, each.numel * kFloat));
    bytes.push_back(
        writes(each.low_precision_copy, each.numel * size_of(each.low_precision_dtype)));
    bytes.push_back(reads(each.step, sizeof(kernels::StepCount)));
    for (const float* moment : each.moments) {
      require_device_memory({moment});
      bytes.push_back(writes(moment, each.numel * kFloat));
    }
  }
  return bytes;
}

std::vector<TouchedBytes> of_blocks(std::span<const kernels::BlockSegment> segments,
                                    const kernels::UpdateScalars& scalars) {
  std::vector<kernels::UpdateSegment> elements;
  for (const kernels::BlockSegment& each : segments) elements.push_back(each.elements);
  std::vector<TouchedBytes> bytes = of_update(elements, scalars);
  for (const kernels::BlockSegment& each : segments) {
    for (const kernels::QuantizedMoment& moment : {each.exp_avg, each.exp_avg_sq}) {
      require_device_memory({moment.codes, moment.absmax});
      bytes.push_back(writes(moment.codes, each.elements.numel));
      bytes.push_back(
          writes(moment.absmax, divide_up(each.elements.numel, kernels::kQuantizedBlock) * kFloat));
    }
  }
  return bytes;
}

std::vector<TouchedBytes> of_sums(std::span<const kernels::SumNode> nodes, const float* grad_scale,
                                  const void* scratch) {
  require_device_memory({grad_scale, scratch});
  std::vector<TouchedBytes> bytes{reads(grad_scale, kFloat),
                                  writes(scratch, kernels::sum_scratch_bytes(nodes))};
  for (const kernels::SumNode& node : nodes) {
    const kernels::UpdateSegment& each = node.elements;
    require_device_memory({each.param, each.grad, each.moments[0], each.moments[1], each.step});
    for (const float* array :
         {static_cast<const float*>(each.param), each.grad,
          static_cast<const float*>(each.moments[0]), static_cast<const float*>(each.moments[1])}) {
      bytes.push_back(reads(array, each.numel * kFloat));
    }
    bytes.push_back(reads(each.step, sizeof(kernels::StepCount)));
    bytes.push_back(writes(node.sums, sizeof(kernels::SquareSums)));
  }
  return bytes;
}

std::vector<TouchedBytes> of_ratios(std::span<const kernels::TrustParameter> parameters,
                                    kernels::SquareSums* sums) {
  std::vector<TouchedBytes> bytes;
  for (const kernels::TrustParameter& each : parameters) {
    require_device_memory({each.ratio, each.joins, sums});
    bytes.push_back(writes(each.ratio, kFloat));
    bytes.push_back(writes(sums + each.root, sizeof(kernels::SquareSums)));
    bytes.push_back(
        reads(each.joins, each.join_count * static_cast<int64_t>(sizeof(kernels::NodeJoin))));
  }
  return bytes;
}

// Returns the CPU's kernels. Each kernel first reports the bytes that it accesses, and opens
// guarded memory while it runs.
const kernels::KernelTable& checked_kernels() {
  using namespace kernels;
  static const KernelTable table{
      .accumulate =
          [](Stream& stream, std::span<const AccumulateRun> runs, float scale) {
            const CheckedWork work(stream, "accumulate", of_copies(runs));
            cpu_kernels().accumulate(stream, runs, scale);
          },
      .accumulate_strided =
          [](Stream& stream, const StridedSource& source, void* destination, DType dtype,
             float scale) {
            const CheckedWork work(
                stream, "accumulate_strided",
                {reads(source), writes(destination, source.numel() * size_of(dtype))});
            cpu_kernels().accumulate_strided(stream, source, destination, dtype, scale);
          },
      .cast_pack =
          [](Stream& stream, std::span<const CastRun> runs, float scale) {
            const CheckedWork work(stream, "cast_pack", of_copies(runs));
            cpu_kernels().cast_pack(stream, runs, scale);
          },
      .cast_pack_strided =
          [](Stream& stream, const StridedSource& source, void* destination, DType dtype,
             float scale) {
            const CheckedWork work(
                stream, "cast_pack_strided",
                {reads(source), writes(destination, source.numel() * size_of(dtype))});
            cpu_kernels().cast_pack_strided(stream, source, destination, dtype, scale);
          },
      .clip_coefficient =
          [](Stream& stream, const GradNorm* reduced, NormType type, double max_norm,
             const ClipOutputs& outputs) {
            require_device_memory({reduced, outputs.norm, outputs.coefficient, outputs.found_inf});
            const CheckedWork work(
                stream, "clip_coefficient",
                {reads(reduced, sizeof(GradNorm)), writes(outputs.norm, kFloat),
                 writes(outputs.coefficient, kFloat), writes(outputs.found_inf, kFloat)});
            cpu_kernels().clip_coefficient(stream, reduced, type, max_norm, outputs);
          },
      .count_steps =
          [](Stream& stream, std::span<StepCount* const> counters, const StepBetas& betas,
             const float* found_inf) {
            std::vector<TouchedBytes> bytes{reads(found_inf, kFloat)};
            for (StepCount* each : counters) {
              require_device_memory({each});
              bytes.push_back(writes(each, sizeof(StepCount)));
            }
            const CheckedWork work(stream, "count_steps", bytes);
            cpu_kernels().count_steps(stream, counters, betas, found_inf);
          },
      .digest =
          [](Stream& stream, std::span<const DigestRun> runs) {
            std::vector<TouchedBytes> bytes;
            for (const DigestRun& run : runs) {
              require_device_memory({run.data, run.parts});
              bytes.push_back(reads(run.data, run.bytes));
              bytes.push_back(writes(run.digest, sizeof(uint64_t)));
              bytes.push_back(writes(run.parts, kernels::kDigestParts * 8));
            }
            const CheckedWork work(stream, "digest", bytes);
            cpu_kernels().digest(stream, runs);
          },
      .fill_nan =
          [](Stream& stream, std::span<const FillRun> runs) {
            const CheckedWork work(stream, "fill_nan", of_fills(runs));
            cpu_kernels().fill_nan(stream, runs);
          },
      .fill_zero =
          [](Stream& stream, std::span<const FillRun> runs) {
            const CheckedWork work(stream, "fill_zero", of_fills(runs));
            cpu_kernels().fill_zero(stream, runs);
          },
      .grad_norm =
          [](Stream& stream, std::span<const GradSegment> segments, NormType type,
             const NormOutputs& outputs) {
            std::vector<TouchedBytes> bytes;
            for (const auto& each : segments)
              bytes.push_back(reads(each.grad, each.numel * kFloat));
            require_device_memory({outputs.norm, outputs.first_non_finite});
            bytes.push_back(writes(outputs.norm, sizeof(GradNorm)));
            bytes.push_back(writes(outputs.first_non_finite, sizeof(double)));
            const CheckedWork work(stream, "grad_norm", bytes);
            cpu_kernels().grad_norm(stream, segments, type, outputs);
          },
      .mark_time =
          [](Stream& stream, int64_t* ns) {
            const CheckedWork work(stream, "mark_time", {writes(ns, sizeof *ns)});
            cpu_kernels().mark_time(stream, ns);
          },
      .norm_scratch_bytes = cpu_kernels().norm_scratch_bytes,
      .pause_since =
          [](Stream& stream, std::span<const int64_t> marks, int64_t ns) {
            const CheckedWork work(stream, "pause_since",
                                   {reads(marks.data(), static_cast<int64_t>(marks.size_bytes()))});
            cpu_kernels().pause_since(stream, marks, ns);
          },
      .reduce =
          [](Stream& stream, std::span<const ReduceRun> runs, ReduceOp op) {
            std::vector<TouchedBytes> bytes;
            for (const ReduceRun& run : runs) {
              const int64_t size = run.numel * size_of(run.dtype);
              for (const void* each : run.sources) {
                require_device_memory({each});
                bytes.push_back(reads(each, size));
              }
              require_device_memory({run.out});
              bytes.push_back(writes(run.out, size));
            }
            const CheckedWork work(stream, "reduce", bytes);
            cpu_kernels().reduce(stream, runs, op);
          },
      .sum_squares =
          [](Stream& stream, std::span<const SumNode> nodes, const UpdateRule& rule,
             const float* grad_scale, void* scratch) {
            const CheckedWork work(stream, "sum_squares", of_sums(nodes, grad_scale, scratch));
            cpu_kernels().sum_squares(stream, nodes, rule, grad_scale, scratch);
          },
      .trust_ratios =
          [](Stream& stream, std::span<const TrustParameter> parameters, SquareSums* sums,
             const TrustFormula& formula) {
            const CheckedWork work(stream, "trust_ratios", of_ratios(parameters, sums));
            cpu_kernels().trust_ratios(stream, parameters, sums, formula);
          },
      .update =
          [](Stream& stream, std::span<const UpdateSegment> segments, const UpdateRule& rule,
             const UpdateScalars& scalars) {
            const auto name = std::visit([](const auto& of) { return of.kName; }, rule);
            const CheckedWork work(stream, name, of_update(segments, scalars));
            cpu_kernels().update(stream, segments, rule, scalars);
          },
      .update_blocks =
          [](Stream& stream, std::span<const BlockSegment> segments, const AdamW& rule,
             const UpdateScalars& scalars) {
            const CheckedWork work(stream, "update_blocks", of_blocks(segments, scalars));
            cpu_kernels().update_blocks(stream, segments, rule, scalars);
          },
  };
  return table;
}

}  // namespace

CheckedStream::CheckedStream(const Device& device, RaceCheck& check, std::string_view name,
                             bool runs_beside)
    : CpuStream(device),
      check_(check),
      number_(check.add_stream(std::string(name))),
      inner_(cpu_device().make_stream({.name = std::string(name), .runs_beside = runs_beside})) {}

// If work threw, memory is still open, because the call that closes it did not run.
CheckedStream::~CheckedStream() {
  inner_ = nullptr;
  for (; open_ > 0; --open_) GuardedMemory::instance().close();
}

void CheckedStream::open_memory() {
  inner_->call([this] {
    ++open_;
    GuardedMemory::instance().open();
  });
}

void CheckedStream::close_memory() {
  inner_->call([this] {
    GuardedMemory::instance().close();
    --open_;
  });
}

void CheckedStream::read(void* to, const void* from, int64_t bytes) {
  // The host copies when the stream's work has ended. Until then the scope opens device memory to
  // the host.
  touch("read", {{from, bytes}});
  synchronize();
  const AsDeviceWork work;
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void CheckedStream::copy(void* to, const void* from, int64_t bytes) {
  const CheckedWork work(*this, "copy", {reads(from, bytes), writes(to, bytes)});
  inner_->copy(to, from, bytes);
}

std::shared_ptr<EventMark> CheckedStream::mark(CodePlace) {
  Event inner = cpu_device().make_event();
  inner_->record(inner);
  return std::make_shared<CheckedMark>(check_, std::move(inner), check_.mark(number_));
}

void CheckedStream::wait_for(const std::shared_ptr<EventMark>& mark, CodePlace place) {
  const auto& checked = static_cast<const CheckedMark&>(*mark);
  inner_->wait(checked.inner);  // a mutation removes the wait only from the check
  check_.wait(number_, checked.clock, place);
}

CheckedWork::CheckedWork(Stream& stream, std::string_view what,
                         const std::vector<TouchedBytes>& bytes)
    : stream_(dynamic_cast<CheckedStream*>(&stream)) {
  if (stream_ == nullptr) return;
  stream_->touch(what, bytes);
  stream_->open_memory();
}

CheckedWork::~CheckedWork() {
  if (stream_ != nullptr) stream_->close_memory();
}

Buffer known_to(const std::shared_ptr<RaceCheck>& check, Buffer memory) {
  if (!memory) return memory;
  void* data = memory.data();
  const int64_t bytes = memory.bytes();
  check->add_memory(data, bytes);
  // The check must forget the memory before the deleter releases it, because the address may be
  // reused at once.
  auto kept = std::make_shared<Buffer>(std::move(memory));
  return {data, bytes, [check, kept](void* gone) { check->remove_memory(gone); }};
}

CheckedDevice::CheckedDevice() : check_(std::make_shared<RaceCheck>()) {
  GuardedMemory::instance().watch();
  compute_ = std::make_unique<CheckedStream>(*this, *check_, "compute", /*runs_beside=*/false);
}

std::unique_ptr<Stream> CheckedDevice::make_stream(const StreamOptions& options) const {
  return std::make_unique<CheckedStream>(*this, *check_, options.name, options.runs_beside);
}

Buffer CheckedDevice::allocate(int64_t bytes, MemoryKind kind) const {
  // The host may access pinned memory at any time, so neither check applies to it.
  if (kind != MemoryKind::kDevice) return cpu_device().allocate(bytes, kind);
  return known_to(check_, GuardedMemory::instance().allocate(bytes));
}

const kernels::KernelTable* CheckedDevice::kernels() const { return &checked_kernels(); }

}  // namespace fsdp::testing
