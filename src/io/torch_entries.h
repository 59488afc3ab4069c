// Finds the weights and their names among the tensors of a pickle.
#pragma once

#include <string>
#include <vector>

#include "io/pickle.h"

namespace fsdp {

struct TorchEntries {
  struct Entry {
    std::string name;
    const PickledTensor* tensor = nullptr;  // owned by the pickle
  };
  std::vector<Entry> tensors;
  std::vector<std::string> notes;  // entries that are not weights
};

// Returns the weights of a state_dict, of a state_dict within a training script's dict, or of a
// TorchScript module.
// Errors: IoError kCorruptData if the root is of another class (the error names the class) or if a
//   tensor cannot be read (the error names the tensor).
TorchEntries find_entries(const PickleValue& root, const std::string& file);

}  // namespace fsdp
