#include "shard/main_place.h"

#include "comm/mesh_state.h"

namespace fsdp {
namespace {

// Main state on the device. The waits between streams order all accesses, so the host never blocks.
class OnDevice final : public MainPlace {
 public:
  OnDevice(CommStreams& streams, EngineMemory& memory)
      : MainPlace(streams, memory, memory.ledger) {}

  bool is_host() const override { return false; }
  at::Device torch_device() const override { return streams_.torch_device; }
  Stream& stream() const override { return *streams_.compute; }
  MemoryLedger& ledger() override { return memory_.ledger; }
  Buffer allocate(int64_t bytes) const override { return memory_.allocate(bytes); }
  Buffer allocate_gradients(int64_t bytes) const override {
    return memory_.allocate_for_reduce(bytes);
  }
  Buffer allocate_own(int64_t bytes) const override { return memory_.allocate_own(bytes); }
  void settle() const override {}
  void settle_compute() const override {}
  void send(const std::vector<kernels::CastRun>& runs, std::string_view /*unit*/) override {
    kernels::cast_pack(*streams_.gather, runs);
  }
  void take(const std::vector<kernels::AccumulateRun>& runs, std::string_view /*unit*/) override {
    kernels::accumulate(*streams_.reduce, runs);
  }
  Stream& update_stream() const override {
    streams_.reduce_after_left_gathers();
    return *streams_.reduce;
  }
  Stream& last_of_reduce() const override { return *streams_.reduce; }
  void reduce_after_takes() const override {}
};

// Main state in pinned memory of the host. Peers do not read this memory, so it does not come from
// a communicator.
class OnHost final : public MainPlace {
 public:
  OnHost(const Mesh& mesh, CommStreams& streams, EngineMemory& memory)
      : MainPlace(streams, memory, memory.host_ledger), mesh_(mesh) {}

  bool is_host() const override { return true; }
  at::Device torch_device() const override { return at::kCPU; }
  Stream& stream() const override { return state_of(mesh_).host().compute_stream(); }
  MemoryLedger& ledger() override { return memory_.host_ledger; }
  Buffer allocate(int64_t bytes) const override { return allocate_own(bytes); }
  Buffer allocate_gradients(int64_t bytes) const override { return allocate_own(bytes); }
  Buffer allocate_own(int64_t bytes) const override {
    return streams_.device.allocate(bytes, MemoryKind::kPinned);
  }
  // The host is not a stream and cannot wait for an event, so it blocks before it reads or writes
  // main state.
  void settle() const override {
    streams_.upload->synchronize();
    streams_.download->synchronize();
  }
  void settle_compute() const override { streams_.compute->synchronize(); }

  // gather_after has already ordered the upload after the last use of the memory that it writes.
  // The gather is in place, so it waits for the upload.
  void send(const std::vector<kernels::CastRun>& runs, std::string_view unit) override {
    Stream& upload = *streams_.upload;
    const ContextSpan span = streams_.span(upload, "upload", unit);
    std::vector<kernels::CastRun> casts;
    for (const kernels::CastRun& run : runs) {
      if (run.source_dtype == run.destination_dtype) {
        upload.copy(run.destination, run.source, run.numel * size_of(run.source_dtype));
      } else {
        casts.push_back(run);  // the device reads the host's memory
      }
    }
    kernels::cast_pack(upload, casts);
    Event uploaded(streams_.device);
    upload.record(uploaded);
    streams_.gather->wait(uploaded);  // wait 18
  }

  // The reduce stream does not wait for the download stream, so that the next unit's reduction
  // overlaps with the download. Instead, the slot is released after the download (last_of_reduce).
  void take(const std::vector<kernels::AccumulateRun>& runs, std::string_view unit) override {
    Stream& download = *streams_.download;
    Event reduced(streams_.device);
    streams_.reduce->record(reduced);
    download.wait(reduced);  // wait 19
    const ContextSpan span = streams_.span(download, "download", unit);
    std::vector<kernels::AccumulateRun> adds;
    for (const kernels::AccumulateRun& run : runs) {
      if (run.overwrite && run.source_dtype == DType::kFloat32) {
        download.copy(run.destination, run.source, run.numel * size_of(run.source_dtype));
      } else {
        adds.push_back(run);  // the device reads and writes the host's memory
      }
    }
    kernels::accumulate(download, adds);
  }

  Stream& update_stream() const override {
    settle();
    return stream();
  }
  Stream& last_of_reduce() const override { return *streams_.download; }
  void reduce_after_takes() const override {
    Event added(streams_.device);
    streams_.download->record(added);
    streams_.reduce->wait(added);  // wait 20
  }

 private:
  const Mesh& mesh_;
};

}  // namespace

// allocate_gradients is virtual and must not be called during construction. The pool calls it only
// later.
MainPlace::MainPlace(CommStreams& streams, EngineMemory& memory, MemoryLedger& ledger)
    : gradients(streams.device, MemoryCategory::kMainGradients, ledger, SlotReuse::kLastReturned,
                [this](int64_t bytes) { return allocate_gradients(bytes); }),
      streams_(streams),
      memory_(memory) {}

std::unique_ptr<MainPlace> MainPlace::make(const Mesh& mesh, const Options& options,
                                           CommStreams& streams, EngineMemory& memory) {
  if (options.cpu_offload) return std::make_unique<OnHost>(mesh, streams, memory);
  return std::make_unique<OnDevice>(streams, memory);
}

}  // namespace fsdp
