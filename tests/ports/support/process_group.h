// Sums over the ranks of a job. It replaces c10d's process groups, because their headers need files
// that LibTorch does not ship. It uses c10d's file store (PORTS_STORE) and sums in rank order.
#pragma once

#include <torch/torch.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

namespace ports {

class ProcessGroup {
 public:
  ProcessGroup()
      : rank_(std::atoi(std::getenv("RANK"))),
        world_size_(std::atoi(std::getenv("WORLD_SIZE"))),
        store_(c10::make_intrusive<c10d::FileStore>(std::getenv("PORTS_STORE"), world_size_)) {}
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  void all_reduce(at::Tensor& tensor) const {
    const std::string key = std::to_string((*calls_)++) + "/";
    const auto* bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
    store_->set(key + std::to_string(rank_), std::vector<uint8_t>(bytes, bytes + tensor.nbytes()));
    const at::Tensor other = torch::empty_like(tensor);
    for (int rank = 0; rank < world_size_; ++rank) {
      const std::vector<uint8_t> theirs = store_->get(key + std::to_string(rank));
      TORCH_CHECK(theirs.size() == other.nbytes(), "ranks sum tensors of different sizes");
      std::memcpy(other.mutable_data_ptr(), theirs.data(), theirs.size());
      rank == 0 ? tensor.copy_(other) : tensor.add_(other);
    }
  }
  double mean(double value, std::string_view) const {
    at::Tensor sum = torch::tensor({value}, torch::kDouble);
    all_reduce(sum);
    return sum.item<double>() / world_size_;
  }

 private:
  int rank_, world_size_;
  // The copies of a rank's group share the store.
  c10::intrusive_ptr<c10d::FileStore> store_;
  std::shared_ptr<int> calls_ = std::make_shared<int>(0);
};

}  // namespace ports
