#include "shard/comm_streams.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "fsdp/error.h"

namespace fsdp {
namespace {

bool run_beside(const Mesh& mesh, const Options& options) {
  const CpuStreamKind kind = options.tuning.cpu_streams;
  if (kind == CpuStreamKind::kAuto) return !state_of(mesh).parts().topology.one_host;
  return kind == CpuStreamKind::kThreaded;
}

// Returns the compute stream of the calling thread. A thread calls this when it makes an engine or
// begins a forward. The function also prepares the thread, because the thread may never have used
// the device before.
Stream& compute_of_thread(const Mesh& mesh, at::Device torch_device) {
  const MeshParts& parts = state_of(mesh).parts();
  torch_cuda::require_cuda(torch_device);
  parts.device->make_current();
  // If several ranks are threads that share a GPU, each needs its own stream: work of several
  // threads on the GPU's default stream would not overlap.
  if (parts.shares_device) torch_cuda::leave_default_stream(torch_device);
  // By default LibTorch runs the backwards of all threads on one thread per device. On such a
  // shared thread, a hook that waits for another rank would block the backward of that rank. So the
  // backward of this thread runs on this thread itself.
  torch_cuda::run_backward_here(torch_device);
  return parts.device->compute_stream(torch_cuda::current_stream(torch_device));
}

std::unique_ptr<Stream> transfer_stream(const Mesh& mesh, const Options& options,
                                        std::string name) {
  if (!options.cpu_offload) return nullptr;
  return state_of(mesh).device().make_stream(
      {.name = std::move(name), .runs_beside = run_beside(mesh, options)});
}

}  // namespace

CommStreams::CommStreams(const Mesh& mesh, const Options& options, SpanLog& span_log)
    : CommStreams(mesh, options, span_log, state_of(mesh).streams(run_beside(mesh, options))) {}

CommStreams::CommStreams(const Mesh& mesh, const Options& options, SpanLog& span_log,
                         MeshStreams streams)
    : device(state_of(mesh).device()),
      torch_device(std::string(device.name())),
      compute(&compute_of_thread(mesh, torch_device)),
      gather(std::move(streams.gather)),
      reduce(std::move(streams.reduce)),
      upload(transfer_stream(mesh, options, "upload")),
      download(transfer_stream(mesh, options, "download")),
      spans(span_log),
      mesh_(mesh) {}

void CommStreams::settle(Stream& stream, const std::function<void()>& issue) const {
  try {
    issue();
    stream.synchronize();
  } catch (const std::exception&) {
    // Wait for the whole device, because work that was issued before the error may still use the
    // memory that the caller frees next.
    device.drain();
    throw;
  }
}

void CommStreams::finish() noexcept {
  for (Stream* stream : {gather.get(), reduce.get(), upload.get(), download.get(), compute}) {
    if (stream == nullptr) continue;
    try {
      stream->synchronize();
    } catch (const std::exception&) {
      // A failed stream runs nothing more. The host must still wait for the other streams.
    }
  }
}

bool CommStreams::computes_here() const {
  return &device.compute_stream(torch_cuda::current_stream(torch_device)) == compute;
}

void CommStreams::follow_compute() {
  Stream& now = compute_of_thread(mesh_, torch_device);
  if (&now == compute) return;
  // The old compute stream may still write spans to the log. The host waits for it here, because
  // finish() synchronizes only the current compute stream.
  if (spans.is_on()) compute->synchronize();
  Event before(device);
  compute->record(before);
  now.wait(before);  // wait 15
  compute = &now;
}

// While autograd runs a gradient's hook, LibTorch's current stream is that of the accumulator
// ([Note: stream of the accumulator]).
void CommStreams::wait_for_autograd() {
  Stream& now = device.compute_stream(torch_cuda::current_stream(torch_device));
  if (&now == compute) return;
  Event made(device);
  now.record(made);
  compute->wait(made);  // wait 17
}

void CommStreams::gather_after_compute() {
  Event written(device);
  compute->record(written);
  gather_after(written);  // wait 10
}

// With offload a gather begins with an upload into the same memory, so the upload stream must wait
// as well.
void CommStreams::gather_after(const Event& event, CodePlace place) const {
  gather->wait(event, place);
  if (upload) upload->wait(event, place);
}

void CommStreams::wait_for_left_gathers() {
  if (!std::exchange(has_left_gathers_, false)) return;
  // The compute stream waits for all gathers issued so far, which include those that leave_gather
  // noted.
  const ExposedTimer timer(*this);
  Event gathered(device);
  gather->record(gathered);
  compute->wait(gathered);  // wait 14
}

void CommStreams::reduce_after_left_gathers() const {
  if (!has_left_gathers_) return;
  Event gathered(device);
  gather->record(gathered);
  reduce->wait(gathered);  // wait 23
}

// If the compute stream is inline, a wait blocks the calling thread, so the timer reads the
// thread's clock. Otherwise the stream only queues the wait, so the stream itself must report the
// times.
ExposedTimer::ExposedTimer(CommStreams& streams)
    : streams_(streams), is_inline_(streams.compute->is_inline()) {
  if (is_inline_) start_ns_ = span_clock_ns();
  if (is_inline_ || !streams.spans.is_on()) return;
  began_ns_ = std::make_shared<int64_t>(0);
  streams.compute->tell_time([began = began_ns_](int64_t ns) { *began = ns; });
}

ExposedTimer::~ExposedTimer() {
  if (is_inline_) streams_.exposed_comm_ns += span_clock_ns() - start_ns_;
  if (!began_ns_) return;
  try {
    // The callback may run after this timer was destroyed. The callback uses CommStreams, which is
    // still alive then, because finish() waits for the compute stream.
    streams_.compute->tell_time([&streams = streams_, began = began_ns_](int64_t ns) {
      streams.exposed_comm_ns += std::max<int64_t>(ns - *began, 0);
    });
  } catch (const DeviceError&) {  // the next use of the device throws this error
  }
}

}  // namespace fsdp
