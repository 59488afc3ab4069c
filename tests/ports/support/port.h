// Synthetic data for the ports, and losses as lines that compare.py reads.
//
// A batch has kBatch rows, which are divided into parts. Each rank trains on its own part. The
// plain program trains on all rows as one part. If PORTS_PARTS is set, it trains on that many parts
// one after the other, with the random numbers of the ranks to which it is compared.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace ports {

inline constexpr int64_t kSteps = 6, kBatch = 8;

struct Part {
  int64_t step = 0;
  int64_t index = 0;  // among all parts of the batch
  int64_t count = 1;
  size_t slot = 0;  // among the parts of this process

  // Returns the rows of this part, copied from the whole batch.
  at::Tensor rows(const at::Tensor& whole, int64_t dim = 0) const {
    const int64_t mine = whole.size(dim) / count;
    return whole.narrow(dim, index * mine, mine).contiguous();
  }
  // Seeds the generator, so that later random numbers depend only on this step and part.
  void seed() const { torch::manual_seed(static_cast<uint64_t>(1000 + step * kBatch + index)); }
};

class Run {
 public:
  Run() {
    const char* parts = std::getenv("PORTS_PARTS");
    count_ = parts == nullptr ? 1 : std::atoi(parts);
    mine_ = count_;
    at::set_num_threads(1);  // the number of threads changes rounding
  }
  // Makes this process a rank of the mesh.
  template <class Mesh>
  explicit Run(const Mesh& mesh)
      : first_(mesh.rank()),
        count_(mesh.world_size()),
        over_ranks_([mesh](double value) { return mesh.mean(value, "loss"); }) {
    at::set_num_threads(1);
  }

  // Returns the parts of a step's batch on which this process trains.
  std::vector<Part> parts(int64_t step) const {
    std::vector<Part> parts;
    for (int64_t i = 0; i < mine_; ++i)
      parts.push_back({step, first_ + i, count_, static_cast<size_t>(i)});
    return parts;
  }
  int64_t part_count() const { return mine_; }

  // Adds a value of one part. end_step prints the mean over all parts.
  void add(const std::string& name, const at::Tensor& value) {
    size_t i = 0;
    while (i < values_.size() && values_[i].first != name) ++i;
    if (i == values_.size()) values_.emplace_back(name, 0.0);
    values_[i].second += value.item<double>();
  }
  void end_step() {
    for (auto& [name, sum] : values_) {
      double mean = sum / static_cast<double>(mine_);
      if (over_ranks_) mean = over_ranks_(mean);
      if (first_ == 0) std::printf("%s %.17g\n", name.c_str(), mean);
    }
    values_.clear();
  }
  // Prints values on rank 0 only. They must be the same on every rank.
  void say(const std::string& name, const at::Tensor& values) const {
    if (first_ != 0) return;
    const at::Tensor flat = values.detach().to(torch::kDouble).flatten().contiguous();
    for (int64_t i = 0; i < flat.numel(); ++i)
      std::printf("%s %.17g\n", name.c_str(), flat.const_data_ptr<double>()[i]);
  }

 private:
  int64_t first_ = 0, count_ = 1, mine_ = 1;
  std::function<double(double)> over_ranks_;
  std::vector<std::pair<std::string, double>> values_;
};

// ---- data: each function depends on the step and returns the rows of one part ----

struct Labelled {
  at::Tensor inputs, labels;
};

inline at::Tensor noise(const Part& part, std::vector<int64_t> sizes, uint64_t seed) {
  sizes.insert(sizes.begin(), kBatch);
  const at::Generator generator = at::detail::createCPUGenerator(seed + part.step);
  return part.rows(torch::randn(sizes, generator, torch::kFloat));
}

// Returns noisy pictures of the classes, and their labels.
inline Labelled images(const Part& part, int64_t channels, int64_t size, int64_t classes) {
  const at::Generator once = at::detail::createCPUGenerator(7);
  const at::Tensor pictures = torch::randn({classes, channels, size, size}, once, torch::kFloat);
  const at::Tensor labels = (torch::arange(kBatch) * 3 + part.step) % classes;
  return {
      part.rows(pictures.index_select(0, labels)) + 0.3 * noise(part, {channels, size, size}, 50),
      part.rows(labels)};
}

// Returns the powers of x up to the fourth, and the values of a polynomial.
inline Labelled polynomial(const Part& part) {
  const at::Tensor x = 0.5 * noise(part, {1}, 90);
  const at::Tensor powers = torch::cat({x, x.pow(2), x.pow(3), x.pow(4)}, 1);
  return {powers, powers.matmul(torch::tensor({{0.5F}, {-1.0F}, {0.25F}, {2.0F}})) + 3};
}

// Returns sequences that count upwards with their own start and stride, and the next element of
// each position.
inline Labelled counting(const Part& part, int64_t vocabulary, int64_t length) {
  const at::Tensor rows = torch::arange(kBatch).unsqueeze(1);
  const at::Tensor from = rows * 5 + part.step * length;
  const at::Tensor ids = (from + torch::arange(length + 1) * (rows % 2 + 1)) % vocabulary;
  return {part.rows(ids.slice(1, 0, length)), part.rows(ids.slice(1, 1))};
}

}  // namespace ports
