// Made-up optimizers: one keeps bytes in blocks that must not be cut, one a value per row.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/shard_cut.h"
#include "checkpoint/support/exact_training.h"
#include "checkpoint/training_state_parts.h"
#include "support/models.h"
#include "support/scratch_folder.h"
#include "support/torch_ranks.h"

namespace fsdp {
namespace {

using testing::run_torch_ranks;

constexpr int64_t kNumel = 40'001;  // the last block is shorter than the others
constexpr int64_t kRows = 5'003;

uint8_t byte_at(int64_t element) { return static_cast<uint8_t>(element * 37 % 251 + 1); }
float row_at(int64_t row) { return 0.5F * static_cast<float>(row) + 1; }

// Both tensors are cut into slices, and each slice is held by two ranks if the world size is even.
// The slices of the first tensor are whole blocks.
class BlockState final : public StateObject {
 public:
  BlockState(const Mesh& mesh, int64_t granule)
      : StateObject("blocks", RestoreOrder::kOptimizer),
        granule_(granule),
        copies_(mesh.world_size() % 2 == 0 ? 2 : 1),
        slices_(mesh.world_size() / copies_),
        rank_(mesh.rank()),
        bytes_range_(slice_of(kNumel, granule)),
        rows_range_(slice_of(kRows, 1)),
        bytes_(bytes_range_.numel),
        rows_(rows_range_.numel) {}

  std::string kind() const override { return "BlockState"; }

  void append_parts(std::vector<StatePart>& parts) override {
    parts.push_back(part("blocks/bytes", StoredDType::kU8, kNumel, granule_, bytes_range_,
                         reinterpret_cast<std::byte*>(bytes_.data())));
    parts.push_back(part("blocks/rows", StoredDType::kF32, kRows, 1, rows_range_,
                         reinterpret_cast<std::byte*>(rows_.data())));
  }

  void fill() {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = byte_at(bytes_range_.begin + i);
    for (size_t i = 0; i < rows_.size(); ++i) rows_[i] = row_at(rows_range_.begin + i);
  }
  int64_t wrong_elements() const {
    int64_t wrong = 0;
    for (size_t i = 0; i < bytes_.size(); ++i)
      wrong += bytes_[i] != byte_at(bytes_range_.begin + i) ? 1 : 0;
    for (size_t i = 0; i < rows_.size(); ++i)
      wrong += rows_[i] != row_at(rows_range_.begin + i) ? 1 : 0;
    return wrong;
  }

 private:
  ElementRange slice_of(int64_t numel, int64_t granule) const {
    const int64_t blocks = (numel + granule - 1) / granule;
    const int64_t slice = rank_ / copies_;
    const int64_t begin = std::min(numel, blocks * slice / slices_ * granule);
    return {begin, std::min(numel, blocks * (slice + 1) / slices_ * granule) - begin};
  }
  StatePart part(std::string tensor, StoredDType dtype, int64_t numel, int64_t granule,
                 ElementRange range, std::byte* data) const {
    return {.name = std::move(tensor),
            .dtype = dtype,
            .shape = {numel},
            .strides = {1},
            .granule = granule,
            .begin = range.begin,
            .numel = range.numel,
            .holder = rank_ % copies_,
            .holders = copies_,
            .data = data};
  }

  const int64_t granule_, copies_, slices_, rank_;
  const ElementRange bytes_range_, rows_range_;
  std::vector<uint8_t> bytes_;
  std::vector<float> rows_;
};

TEST_CASE("State in blocks and in rows is carried through any number of ranks") {
  // A share of a slice begins at a multiple of 4 KiB and of the granule: 4,096 and 12,288.
  for (const int64_t granule : {int64_t{256}, int64_t{96}}) {
    CAPTURE(granule);
    const ScratchFolder folder;
    int64_t step = 0;
    for (const int world : {1, 2, 4, 3, 8, 1}) {
      CAPTURE(world);
      run_torch_ranks(world, [&](const Mesh& mesh) {
        Unit<testing::ExactNet> model(17);
        Engine engine(model, mesh);
        TrainingState state(engine);
        auto object = std::make_unique<BlockState>(mesh, granule);
        BlockState& blocks = *object;
        parts_of(state).objects.push_back(std::move(object));
        if (step == 0) {
          blocks.fill();
        } else {
          CHECK(blocks.wrong_elements() > 0);
          load(state, folder / std::to_string(step));
        }
        CHECK(blocks.wrong_elements() == 0);
        save(state, folder / std::to_string(step + 1), {.step = step + 1});
      });
      ++step;
    }
  }
}

TEST_CASE("A checkpoint with other blocks is refused") {
  const ScratchFolder folder;
  const auto run = [&](int64_t granule, auto use) {
    run_torch_ranks(2, [&](const Mesh& mesh) {
      Unit<testing::ExactNet> model(17);
      Engine engine(model, mesh);
      TrainingState state(engine);
      parts_of(state).objects.push_back(std::make_unique<BlockState>(mesh, granule));
      use(state);
    });
  };
  run(256, [&](TrainingState& state) { save(state, folder / "saved"); });
  run(96, [&](TrainingState& state) { CHECK_THROWS_AS(load(state, folder / "saved"), Error); });
}

}  // namespace
}  // namespace fsdp
