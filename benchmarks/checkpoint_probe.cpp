// Times saving and loading of a checkpoint, for benchmarks/checkpoint.
//   fsdp-run -n 2 checkpoint_probe UNITS WIDTH FOLDER
// The model has UNITS layers Linear(WIDTH, WIDTH), fp32, and AdamW has taken one step. Each rank
// reads commands from its FIFO FOLDER/rank-N, one in each line, the same on all ranks. For each
// command rank 0 prints one JSON object, {"seconds": …, "bytes": …}. The time begins at a
// barrier and ends when all ranks have finished.
//   check     saves, changes all values and loads; fails unless the saved values are back
//   save      fsdp::save into FOLDER/checkpoint
//   old       fsdp::save_weights and fsdp::save_optimizer into FOLDER/old, which is then removed
//   load      fsdp::load of FOLDER/checkpoint, which is not in the page cache
//   readhash  each rank reads and hashes its shard of FOLDER/checkpoint; not cached either
//   peak      "bytes": the most memory that a rank has used (VmHWM)
//   copy      each rank copies the state that it saves to memory that was used before
//   stall ROWS     a save of Checkpoints with save_async, then a step of ROWS inputs a rank.
//                  "seconds": SaveStats::stall_ms
//   window ROWS N  20 steps of ROWS inputs. N is 1: Checkpoints saves before the first one
#include <fcntl.h>
#include <fmt/format.h>
#include <fsdp/checkpoint.h>
#include <fsdp/checkpoints.h>
#include <fsdp/fsdp.h>
#include <fsdp/program.h>
#include <fsdp/training_state.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/save_state.h"
#include "checkpoint/staged_shard.h"
#include "io/block_sums.h"

namespace {

namespace fs = std::filesystem;

struct StackImpl : torch::nn::Module {
  StackImpl(int64_t units, int64_t width) {
    for (int64_t i = 0; i < units; ++i) {
      layers.emplace_back(torch::nn::LinearOptions(width, width));
      register_module(fmt::format("layer{}", i), layers.back());
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x;
  }
  std::vector<fsdp::Unit<torch::nn::Linear>> layers;
};
TORCH_MODULE(Stack);

[[noreturn]] void fail(std::string what, const fs::path& where) {
  throw fsdp::StateError({.what = std::move(what), .where = where.string()});
}

// An open file for reading.
class Descriptor {
 public:
  explicit Descriptor(const fs::path& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) fail("cannot open the file", path);
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Returns the sizes of the files, together.
int64_t bytes_in(const fs::path& folder) {
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

// Removes the files from the page cache. They were synced, so no page is dirty.
void drop_cache(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (::posix_fadvise(Descriptor(entry.path()).get(), 0, 0, POSIX_FADV_DONTNEED) != 0) {
      fail("cannot drop the file's pages", entry.path());
    }
  }
}

void read_and_hash(const fs::path& path) {
  const Descriptor file(path);
  std::vector<std::byte> block(static_cast<size_t>(fsdp::kBlockBytes));
  for (;;) {
    size_t filled = 0;
    for (ssize_t got = 1; got > 0 && filled < block.size(); filled += static_cast<size_t>(got)) {
      got = ::read(file.get(), block.data() + filled, block.size() - filled);
      if (got < 0) fail("cannot read the file", path);
    }
    if (filled == 0) return;
    fsdp::hash_of(std::span(block.data(), filled));
  }
}

class Probe {
 public:
  Probe(const fsdp::Mesh& mesh, int64_t units, int64_t width, fs::path folder)
      : mesh_(mesh),
        width_(width),
        folder_(std::move(folder)),
        model_(units, width),
        engine_(model_, mesh),
        optimizer_(engine_, fsdp::AdamWOptions{.lr = 0}),  // so that values stay finite
        state_(engine_) {
    state_.add("optimizer", optimizer_);
    model_(at::ones({1, width})).sum().backward();
    optimizer_.step();
    optimizer_.zero_grad();
  }

  void run(const std::string& line) {
    static const std::map<std::string, void (Probe::*)()> commands = {
        {"check", &Probe::check},
        {"save", &Probe::save},
        {"old", &Probe::save_by_rank_zero},
        {"load", &Probe::load},
        {"readhash", &Probe::read_hash},
        {"copy", &Probe::copy},
        {"peak", &Probe::peak},
        {"stall", &Probe::stall},
        {"window", &Probe::window}};
    std::istringstream words(line);
    std::string command;
    words >> command;
    arguments_.clear();
    for (int64_t number; words >> number;) arguments_.push_back(number);
    const auto found = commands.find(command);
    if (found == commands.end()) fail(fmt::format("no command '{}'", command), "checkpoint_probe");
    (this->*found->second)();
  }

 private:
  fs::path checkpoint() const { return folder_ / "checkpoint"; }

  // Prints the time of `work`, and the bytes in the folder `result`, which may be empty. `prepare`
  // runs on rank 0 before it.
  void time(const fs::path& result, const std::function<void()>& prepare,
            const std::function<void()>& work) {
    if (mesh_.rank() == 0) prepare();
    mesh_.exchange("begin", "");
    const auto began = std::chrono::steady_clock::now();
    work();
    mesh_.exchange("end", "");
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
    if (mesh_.rank() != 0) return;
    fmt::print("{{\"seconds\": {:.6f}, \"bytes\": {}}}\n", seconds.count(),
               result.empty() ? 0 : bytes_in(result));
    std::fflush(stdout);
  }

  void save() {
    time(
        checkpoint(), [&] { fs::remove_all(checkpoint()); },
        [&] { fsdp::save(state_, checkpoint(), {.step = 1}); });
  }
  void save_by_rank_zero() {
    const fs::path old = folder_ / "old";
    time(
        old, [&] { fs::create_directory(old); },
        [&] {
          fsdp::save_weights(engine_, old / "model.safetensors");
          fsdp::save_optimizer(optimizer_, old / "optimizer.safetensors");
        });
    if (mesh_.rank() == 0) fs::remove_all(old);
  }
  void load() {
    time(
        checkpoint(), [&] { drop_cache(checkpoint()); }, [&] { fsdp::load(state_, checkpoint()); });
  }
  void read_hash() {
    const std::string shard =
        fmt::format("shard-{:05}-of-{:05}.safetensors", mesh_.rank(), mesh_.world_size());
    time(
        checkpoint(), [&] { drop_cache(checkpoint()); },
        [&] { read_and_hash(checkpoint() / shard); });
  }
  void step() {
    model_(at::ones({arguments_.at(0), width_})).sum().backward();
    optimizer_.step();
    optimizer_.zero_grad();
  }
  void peak() {
    std::ifstream status("/proc/self/status");
    std::string word;
    int64_t kilobytes = 0;
    while (status >> word && word != "VmHWM:") {
    }
    status >> kilobytes;
    const int64_t bytes = mesh_.max(kilobytes * 1024, "peak");
    if (mesh_.rank() == 0) fmt::print("{{\"bytes\": {}}}\n", bytes);
    std::fflush(stdout);
  }
  void copy() {
    const auto parts = fsdp::parts_for_save(fsdp::parts_of(state_), {.step = 1});
    const fsdp::ShardContent content(parts);
    if (!staged_) staged_.emplace(fsdp::state_of(engine_)).reserve(content);
    time(
        {}, [] {},
        [&] {
          staged_->stage(content);
          staged_->wait_for_copies();
        });
  }
  // Returns the checkpoints that are saved beside the training. They exist from the first use on,
  // so that a probe that does not use them has no memory for them.
  fsdp::Checkpoints& beside() {
    if (!beside_) {
      staged_.reset();
      beside_.emplace(state_, fsdp::CheckpointOptions{.folder = folder_ / "beside",
                                                      .save_steps = 1,
                                                      .save_total_limit = 2,
                                                      .save_async = true});
      beside_->resume();
    }
    return *beside_;
  }
  void stall() {
    beside().after_step(++saves_);
    step();
    std::optional<fsdp::SaveStats> saved;
    // finish() would wait for the disk, and this wait would count as a stall.
    while (!(saved = beside().completed_save())) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      beside().poll();
    }
    const auto us = static_cast<int64_t>(saved->stall_ms * 1e3);
    const double most = static_cast<double>(mesh_.max(us, "stall")) / 1e6;
    if (mesh_.rank() == 0) fmt::print("{{\"seconds\": {:.6f}}}\n", most);
    std::fflush(stdout);
  }
  void window() {
    time(
        {}, [] {},
        [&] {
          if (arguments_.at(1) != 0) beside().after_step(++saves_);
          for (int i = 0; i < 20; ++i) step();
          if (beside_) beside_->finish();
        });
  }
  void check() {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> saved;
    for (const at::Tensor& each : engine_.parameters()) saved.push_back(each.clone());
    save();
    for (const at::Tensor& each : engine_.parameters()) each.fill_(7);
    load();
    for (size_t i = 0; i < saved.size(); ++i) {
      if (!engine_.parameters()[i].equal(saved[i])) {
        fail(fmt::format("parameter {} was not restored", i), checkpoint());
      }
    }
  }

  const fsdp::Mesh& mesh_;
  const int64_t width_;
  const fs::path folder_;
  std::vector<int64_t> arguments_;  // of the command
  int64_t saves_ = 0;               // of `beside_`
  fsdp::Unit<Stack> model_;
  fsdp::Engine engine_;
  fsdp::AdamW optimizer_;
  fsdp::TrainingState state_;
  std::optional<fsdp::StagedShard> staged_;
  std::optional<fsdp::Checkpoints> beside_;
};

}  // namespace

int main(int argc, char** argv) {
  // A rank waits for commands while other programs have their turn.
  return fsdp::run_program(
      [&](const fsdp::Mesh& mesh, fsdp::ErrorPlace&) {
        if (argc != 4) {
          throw fsdp::InvalidArgument({.what = "usage: checkpoint_probe UNITS WIDTH FOLDER"},
                                      fsdp::ExitCode::kUsage);
        }
        at::set_num_threads(1);
        const fs::path folder = argv[3];
        Probe probe(mesh, std::stoll(argv[1]), std::stoll(argv[2]), folder);
        std::ifstream commands(folder / fmt::format("rank-{}", mesh.rank()));
        for (std::string command; std::getline(commands, command);) probe.run(command);
        return 0;
      },
      {.timeout = std::chrono::hours(1)});
}
