// Parses the pickles of torch.save and torch::save. It reads containers, texts, numbers and
// tensors. It never calls a function that the file names. An object of another class is skipped;
// only its class name is kept.
//
// It replaces LibTorch's Unpickler, which turns an OrderedDict into None although every state_dict
// is an OrderedDict. The Unpickler also trusts counts and offsets of the file. This parser checks
// each byte, and it is tested without LibTorch.
#pragma once

#include <fsdp/safetensors.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

// A tensor whose elements are stored in a record of the archive.
struct PickledTensor {
  StoredDType dtype = StoredDType::kF32;
  std::string record;        // key of the record
  int64_t record_bytes = 0;  // size according to the pickle
  int64_t offset = 0;        // in elements, like the strides
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

struct PickleValue {
  enum class Kind : uint8_t {
    kOther,    // None, non-integers, integers beyond 64 bits; not needed for weights
    kInteger,  // an integer or a boolean
    kText,
    kSequence,  // a list or a tuple
    kDict,
    kObject,   // an object of a TorchScript class
    kGlobal,   // the name of a class or a function
    kStorage,  // a storage, from which tensors are built
    kTensor,
    kUnread,        // an object of another class, or the result of a function
    kUnreadTensor,  // a tensor or storage of a kind that the engine does not have
  };
  Kind kind = Kind::kOther;
  int64_t integer = 0;
  // For kText the text. For kGlobal, kObject and kUnread the name, for example
  // "collections.OrderedDict". For kUnreadTensor the reason why the tensor is not read, for example
  // "is made by '…'".
  std::string text;
  // For kSequence its items. For kDict keys and values alternately. For kObject the dict of its
  // attributes, if it has one.
  std::vector<const PickleValue*> items;
  std::unique_ptr<PickledTensor> tensor;  // for kTensor, and for kStorage without a shape
};

// A parsed pickle. Values may refer to each other and to themselves.
struct Pickle {
  std::deque<PickleValue> values;
  const PickleValue* root = nullptr;
};

// Parses a pickle. `file` is used only for messages.
// Effects: uses memory in proportion to the bytes.
// Errors: IoError kCorruptData for data that torch.save does not write; the error names the byte.
//   The same error if the pickle names a function that runs code (os.system, eval); the error names
//   the function. Files of weights do not contain such functions.
Pickle parse_pickle(std::span<const std::byte> bytes, const std::string& file);

}  // namespace fsdp
