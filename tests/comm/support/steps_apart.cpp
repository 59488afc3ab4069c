#include "comm/support/steps_apart.h"

#include <fmt/format.h>

#include <stdexcept>
#include <string>

#include "comm/mesh_state.h"
#include "fsdp/error.h"
#include "runtime/buffer.h"
#include "support/cpu_streams.h"

namespace fsdp::testing {
namespace {

constexpr int kUnits = 3;
constexpr int64_t kNumel = 300;
constexpr int64_t kPieceBytes = kNumel * int64_t{sizeof(float)};

class Steps {
 public:
  Steps(const Mesh& mesh, testing::CpuStreams kind)
      : mesh_(mesh),
        parameters_(allocate_host(mesh.world_size() * kPieceBytes)),
        gradients_(allocate_host(mesh.world_size() * kPieceBytes)),
        streams_(state_of(mesh).streams(kind == testing::CpuStreams::kThreaded)) {}

  ~Steps() {
    for (Stream* stream : {streams_.gather.get(), streams_.reduce.get()}) {
      try {
        stream->synchronize();
      } catch (const CommError&) {
      }
    }
  }

  // Runs one step. If `way` is empty, the rank does the same as the others.
  void step(std::string_view way) {
    const int micro_batches = way == "micro-batches" ? 1 : 2;
    for (int i = 0; i < micro_batches; ++i) {
      for (int unit = 0; unit < kUnits; ++unit) {
        if (way != "skip" || unit < kUnits - 1) gather(unit);
      }
      try {
        backward(way);
      } catch (const std::domain_error&) {
        return;
      }
    }
    const CollectivePart norm{gradients_.data(), gradients_.data(), 1, DType::kFloat32};
    state_of(mesh_)
        .reduce_communicator(Axis::kShard)
        .all_reduce({&norm, 1}, ReduceOp::kSum,
                    state_of(mesh_).order().next(Operation::kAllReduce, 1, "norm"),
                    *streams_.reduce);
    streams_.reduce->synchronize();
  }

 private:
  void backward(std::string_view way) {
    for (int unit = kUnits - 1; unit >= 0; --unit) {
      if (unit < kUnits - 1) gather(unit);
      const bool last = unit == kUnits - 1;
      if (last && way == "exception") throw std::domain_error("a loss that is not finite");
      if (!last || way != "freeze") reduce(unit);
    }
  }

  // Gathers in place, into the only slot of this test.
  void gather(int unit) {
    const CollectivePart part{parameters_.at(mesh_.rank() * kPieceBytes), parameters_.data(),
                              kNumel, DType::kFloat32};
    const std::string name = fmt::format("u{}", unit);
    state_of(mesh_)
        .gather_communicator(Axis::kShard)
        .all_gather({&part, 1}, state_of(mesh_).order().next(Operation::kAllGather, kNumel, name),
                    *streams_.gather);
    streams_.gather->synchronize();  // compute uses the parameters next
  }

  void reduce(int unit) {
    const CollectivePart part{gradients_.data(), gradients_.at(mesh_.rank() * kPieceBytes), kNumel,
                              DType::kFloat32};
    const std::string name = fmt::format("u{}", unit);
    state_of(mesh_)
        .reduce_communicator(Axis::kShard)
        .reduce_scatter({&part, 1}, ReduceOp::kSum,
                        state_of(mesh_).order().next(Operation::kReduceScatter, kNumel, name),
                        *streams_.reduce);
  }

  const Mesh& mesh_;
  Buffer parameters_, gradients_;
  MeshStreams streams_;
};

}  // namespace

void step_apart(const Mesh& mesh, std::string_view way, int odd, testing::CpuStreams kind) {
  Steps steps(mesh, kind);
  for (int step = 0; step < 3; ++step) {
    steps.step(step == 1 && mesh.rank() == odd ? way : std::string_view());
  }
}

}  // namespace fsdp::testing
