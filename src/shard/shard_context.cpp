#include "shard/shard_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/bytes.h"
#include "comm/mesh_state.h"
#include "comm/wire/wire_time.h"
#include "fsdp/error.h"
#include "libtorch/torch_cuda.h"
#include "libtorch/torch_memory.h"
#include "libtorch/torch_store.h"
#include "runtime/memory_meter.h"
#include "runtime/out_of_memory.h"

namespace fsdp {
namespace {

bool run_beside(const Options& options) { return options.cpu_streams == CpuStreamKind::kThreaded; }

// Streams that run at once give the slot that is warm in the cache; on others the one that was
// returned first is the likeliest to be free.
SlotReuse reuse_of(const Stream& stream) {
  return stream.is_inline() ? SlotReuse::kLastReturned : SlotReuse::kFirstReturned;
}

// Of the calling thread, which makes an engine or begins a forward.
Stream& compute_of_thread(const Mesh& mesh, at::Device torch_device) {
  const MeshParts& parts = mesh.state().parts();
  torch_cuda::require_cuda(torch_device);
  parts.device->make_current();
  if (parts.shares_device) torch_cuda::leave_default_stream(torch_device);
  torch_cuda::run_backward_here(torch_device);
  return parts.device->compute_stream(torch_cuda::current_stream(torch_device));
}

template <class Allocate>
Buffer with_cache_emptied(const Allocate& allocate) {
  try {
    return allocate();
  } catch (const OutOfMemory&) {
    if (!torch_cuda::empty_cache()) throw;
  }
  return allocate();
}

std::unique_ptr<Stream> transfer_stream(const Mesh& mesh, const Options& options,
                                        std::string name) {
  if (!options.cpu_offload) return nullptr;
  return mesh.state().device().make_stream(
      {.name = std::move(name), .runs_beside = run_beside(options)});
}

bool averages(const Options& options) {
  return options.gradient_reduction == GradientReduction::kMean &&
         !options.gradient_divide_factor.has_value();
}

ReduceOp reduce_op_of(const Options& options, const Communicator& reduce) {
  return averages(options) && reduce.divides() ? ReduceOp::kAvg : ReduceOp::kSum;
}

float divide_scale_of(const Options& options, const Mesh& mesh, const Communicator& reduce) {
  if (averages(options) && !reduce.divides()) return 1.0F / static_cast<float>(mesh.world_size());
  if (!options.gradient_divide_factor) return 1.0F;
  if (options.gradient_reduction == GradientReduction::kSum) {
    throw InvalidArgument({.what = "gradient_divide_factor with gradient_reduction = kSum",
                           .where = {},
                           .cause = {},
                           .hint = "a sum is not divided: drop one of the two"});
  }
  if (!(*options.gradient_divide_factor > 0)) {
    throw InvalidArgument({.what = fmt::format("gradient_divide_factor must be positive, got {}",
                                               *options.gradient_divide_factor),
                           .where = {},
                           .cause = {},
                           .hint = "leave it unset to divide by the world size"});
  }
  return 1.0F / *options.gradient_divide_factor;
}

DType checked_reduce_dtype(DType dtype) {
  if (dtype == DType::kFloat32 || dtype == DType::kBFloat16) return dtype;
  throw InvalidArgument({.what = fmt::format("reduce_dtype {} is not supported", name_of(dtype)),
                         .where = {},
                         .cause = {},
                         .hint = "use float32 or bfloat16"});
}

std::shared_ptr<const MemoryCap> cap_of(const Mesh& mesh, const Options& options) {
  const MeshParts& parts = mesh.state().parts();
  if (options.memory_limit > 0 && parts.shares_device && parts.device->name() != "cpu") {
    throw InvalidArgument(
        {.what = fmt::format("a memory limit where ranks share {}", parts.device->name()),
         .where = "Options::memory_limit",
         .cause = "LibTorch's allocator counts by device, not by rank",
         .hint = "leave memory_limit at 0, or start one rank for the device"});
  }
  return mesh.state().memory_cap(options.memory_limit);
}

// While a model is built there is nothing to go back to: the limit and the model do not fit
// together.
void refuse_while_building(const MemoryDemand& demand) {
  throw InvalidArgument(
      {.what = fmt::format("the memory limit of {} is too low to build the model",
                           format_bytes(demand.limit)),
       .where = "Options::memory_limit",
       .cause = fmt::format("{} were asked for where {} are held, {} of them by LibTorch",
                            format_bytes(demand.bytes), format_bytes(demand.now.total()),
                            format_bytes(demand.now.torch)),
       .hint = "under a BuildScope this rank's shards and one whole unit have to fit, else the "
               "whole model: raise the limit, use more ranks or smaller units"});
}

}  // namespace

// Programs that have engines have LibTorch's store, too.
ShardContext::ShardContext(Mesh mesh_in, const Options& options)
    : ShardContext(mesh_in, options, mesh_in.state().streams(run_beside(options))) {}

ShardContext::ShardContext(Mesh mesh_in, const Options& options, MeshStreams streams)
    : mesh(std::move(mesh_in)),
      device(mesh.state().device()),
      torch_device(std::string(device.name())),
      strategy(options.strategy),
      reduce_dtype(checked_reduce_dtype(options.reduce_dtype)),
      reduce_op(reduce_op_of(options, reduce())),
      divide_scale(divide_scale_of(options, mesh, reduce())),
      debug(options.debug),
      parameter_slots(device, MemoryCategory::kParameterSlots, ledger, reuse_of(*streams.gather),
                      [this](int64_t bytes) { return allocate_slot(bytes); }),
      reduce_slots(device, MemoryCategory::kReduceSlots, ledger, reuse_of(*streams.reduce),
                   [this](int64_t bytes) { return allocate_for_reduce(bytes); }),
      main_gradients(device, MemoryCategory::kMainGradients,
                     options.cpu_offload ? host_ledger : ledger, SlotReuse::kLastReturned,
                     [this](int64_t bytes) {
                       return offloads() ? allocate_main_own(bytes) : allocate_for_reduce(bytes);
                     }),
      compute(&compute_of_thread(mesh, torch_device)),
      gather_stream(std::move(streams.gather)),
      reduce_stream(std::move(streams.reduce)),
      upload_stream(transfer_stream(mesh, options, "upload")),
      download_stream(transfer_stream(mesh, options, "download")),
      cap_(cap_of(mesh, options)),
      meter_(cap_->meter ? cap_->meter : torch_memory::current_meter()),
      map_shards_(options.map_shards) {
  link_torch_store();
  if (torch_device.is_cpu()) torch_memory::install();
  if (!cap_->meter) return;
  if (torch_device.is_cuda()) static_cast<void>(torch_cuda::held_bytes(torch_device));
  if (!cap_->meter->has_refusal()) cap_->meter->set_refusal(refuse_while_building);
  count_thread();
}

ShardContext::~ShardContext() {
  finish();
  const bool is_last = cap_.use_count() == 1;
  if (is_last && cap_->meter && torch_memory::current_meter() == cap_->meter) {
    torch_memory::set_current_meter(nullptr);
  }
}

Buffer ShardContext::allocate(int64_t bytes) const {
  return counted(bytes,
                 [&] { return mesh.state().gather_communicator(Axis::kWorld).allocate(bytes); });
}

Buffer ShardContext::allocate_slot(int64_t bytes) const {
  return counted(bytes, [&] { return gather().allocate(bytes); });
}

Buffer ShardContext::allocate_for_reduce(int64_t bytes) const {
  return counted(bytes, [&] { return reduce().allocate(bytes); });
}

Buffer ShardContext::allocate_own(int64_t bytes) const {
  return counted(bytes, [&] { return device.allocate(bytes, MemoryKind::kDevice); });
}

Buffer ShardContext::counted(int64_t bytes, const std::function<Buffer()>& allocate) const {
  observe_torch(bytes);
  return with_cache_emptied([&] { return metered(meter_, bytes, allocate); });
}

// What LibTorch keeps for later it gives back where `wanted` more would pass the limit.
void ShardContext::observe_torch(int64_t wanted) const {
  if (!cap_->meter || !torch_device.is_cuda()) return;
  MemoryMeter& meter = *cap_->meter;
  meter.observe_torch(torch_cuda::held_bytes(torch_device));
  if (meter.reading().now.total() + wanted <= cap_->limit || !torch_cuda::empty_cache()) return;
  meter.observe_torch(torch_cuda::held_bytes(torch_device));
}

void ShardContext::check_limit() const {
  if (!cap_->meter || !torch_device.is_cuda()) return;
  observe_torch(0);
  cap_->meter->take(MemoryOwner::kEngine, 0);
}

void ShardContext::count_thread() const {
  if (!cap_->meter || torch_device.is_cuda()) return;
  if (torch_memory::current_meter() != cap_->meter) torch_memory::set_current_meter(cap_->meter);
}

Stream& ShardContext::main_stream() const {
  return offloads() ? mesh.state().host().compute_stream() : *compute;
}

Buffer ShardContext::allocate_main(int64_t bytes) const {
  return offloads() ? allocate_main_own(bytes) : allocate(bytes);
}

Buffer ShardContext::allocate_main_own(int64_t bytes) const {
  return offloads() ? device.allocate(bytes, MemoryKind::kPinned) : allocate_own(bytes);
}

void ShardContext::settle_transfers() const {
  if (!offloads()) return;
  upload_stream->synchronize();
  download_stream->synchronize();
}

void ShardContext::settle(Stream& stream, const std::function<void()>& issue) const {
  try {
    issue();
    stream.synchronize();
  } catch (const std::exception&) {
    device.drain();
    throw;
  }
}

void ShardContext::finish() noexcept {
  for (Stream* stream : {gather_stream.get(), reduce_stream.get(), upload_stream.get(),
                         download_stream.get(), compute}) {
    if (stream == nullptr) continue;
    try {
      stream->synchronize();
    } catch (const std::exception&) {
    }
  }
}

bool ShardContext::computes_here() const {
  return &device.compute_stream(torch_cuda::current_stream(torch_device)) == compute;
}

void ShardContext::follow_compute() {
  count_thread();
  Stream& now = compute_of_thread(mesh, torch_device);
  if (&now == compute) return;
  if (spans.is_on()) compute->synchronize();  // finish() comes for the last one's spans alone
  Event before(device);
  compute->record(before);
  now.wait(before);  // wait 15
  compute = &now;
}

void ShardContext::wait_for_autograd() {
  Stream& now = device.compute_stream(torch_cuda::current_stream(torch_device));
  if (&now == compute) return;
  Event made(device);
  now.record(made);
  compute->wait(made);  // wait 17
}

void ShardContext::gather_into_windows(const Options& options) {
  if (options.nccl_registration == NcclRegistration::kOff) return;
  const auto refuse = [](std::string what, std::string cause) {
    throw InvalidArgument({.what = std::move(what),
                           .where = "Options::nccl_registration",
                           .cause = std::move(cause),
                           .hint = "leave nccl_registration at kOff"});
  };
  if (mesh.state().shape().has_two_axes()) {
    refuse("memory is to be registered with NCCL, and ranks are in groups",
           "a slot would be used by several communicators, with one of which it can be registered");
  }
  if (strategy != Strategy::kFullShard) {
    refuse(fmt::format("memory is to be registered with NCCL under {}", name_of(strategy)),
           "it gathers into no slots");
  }
  gather_stream->synchronize();  // another engine's gathers
  windows_ = gather().with_windows(options.nccl_registration == NcclRegistration::kZeroCta);
}

RanksView ShardContext::map_ranks(void* mine, int64_t bytes, Axis axis) {
  if (!map_shards_) return {};
  gather_stream->synchronize();  // another engine's gathers: the channel is used here, next
  RanksView view = gather(axis).map_ranks(mine, bytes);
  if (view) reads_peers_ = reads_peers_.value_or(axis) == axis ? axis : Axis::kWorld;
  return view;
}

void ShardContext::gather_after_compute() {
  Event written(device);
  compute->record(written);
  gather_after(written);  // wait 10
}

void ShardContext::gather_after(const Event& event, CodePlace place) const {
  gather_stream->wait(event, place);
  if (offloads()) upload_stream->wait(event, place);
}

void ShardContext::wait_for_left_gathers() {
  if (!std::exchange(has_left_gathers_, false)) return;
  const ExposedTimer timer(*this);
  Event gathered(device);
  gather_stream->record(gathered);
  compute->wait(gathered);  // wait 14
}

ExposedTimer::ExposedTimer(ShardContext& context)
    : context_(context), is_inline_(context.compute->is_inline()) {
  if (is_inline_) start_ns_ = span_clock_ns();
  if (is_inline_ || !context.spans.is_on()) return;
  began_ns_ = std::make_shared<int64_t>(0);
  context.compute->tell_time([began = began_ns_](int64_t ns) { *began = ns; });
}

ExposedTimer::~ExposedTimer() {
  if (is_inline_) context_.exposed_comm_ns += span_clock_ns() - start_ns_;
  if (!began_ns_) return;
  try {
    context_.compute->tell_time([&context = context_, began = began_ns_](int64_t ns) {
      context.exposed_comm_ns += std::max<int64_t>(ns - *began, 0);
    });
  } catch (const DeviceError&) {  // whoever works with the device hears of it
  }
}

void ShardContext::count_sent(const Move& move, std::span<const CollectivePart> parts) {
  AxisTraffic& axis = sent.along(move.axis);
  const int64_t bytes = ring_bytes(move.operation, parts, mesh.size(move.axis));
  const bool gathers = move.operation == Operation::kAllGather;
  ++(gathers ? axis.gathers : axis.reductions);
  (gathers ? axis.gathered_bytes : axis.reduced_bytes) += bytes;
}

void ShardContext::begin_reading() { meet("shards are read from here"); }
void ShardContext::end_reading() { meet("shards are read until here"); }

void ShardContext::meet(std::string_view purpose) {
  if (!reads_peers_) return;
  const ExposedTimer timer(*this);
  const ContextSpan span = this->span(*compute, "meet", purpose);
  Event met(device);
  compute->record(met);
  gather_stream->wait(met);  // wait 11
  gather(*reads_peers_)
      .barrier(mesh.state().order().next(Operation::kBarrier, 0, purpose), *gather_stream);
  gather_stream->record(met);
  compute->wait(met);  // wait 11
}

}  // namespace fsdp
