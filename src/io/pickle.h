// Parses the pickles of torch.save and torch::save: containers, texts, numbers and tensors. It
// never calls what a file names: an object of another class is skipped, and its name kept.
//
// It replaces LibTorch's Unpickler, which turns an OrderedDict, and every state_dict is one, into
// None, and trusts a file's counts and places. This parser checks each byte, and is tested without
// LibTorch.
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

// A tensor as a view of the numbers in a record of the archive.
struct PickledTensor {
  StoredDType dtype = StoredDType::kF32;
  std::string record;        // its key
  int64_t record_bytes = 0;  // as the pickle says
  int64_t offset = 0;        // in elements, as the strides
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

struct PickleValue {
  enum class Kind : uint8_t {
    kOther,    // None, numbers that are not whole or beyond 64 bits: no meaning for weights
    kInteger,  // and booleans
    kText,
    kSequence,  // list, tuple
    kDict,
    kObject,   // of a TorchScript class
    kGlobal,   // a class or a function by name
    kStorage,  // a source of tensors
    kTensor,
    kUnread,        // an object of another class, or the result of a function
    kUnreadTensor,  // a tensor or storage of a kind that the engine does not have
  };
  Kind kind = Kind::kOther;
  int64_t integer = 0;
  // kText: itself. kGlobal, kObject, kUnread: the name, "collections.OrderedDict". kUnreadTensor:
  // why it is not read, "is made by '…'".
  std::string text;
  // kSequence: its items. kDict: keys and values in turn. kObject: the dict of its attributes, if
  // any.
  std::vector<const PickleValue*> items;
  std::unique_ptr<PickledTensor> tensor;  // kTensor; kStorage, without a shape
};

// A parsed pickle; values may refer to each other, and to themselves.
struct Pickle {
  std::deque<PickleValue> values;
  const PickleValue* root = nullptr;
};

// Parses a pickle. `file` is used for messages only.
// Effects: memory in proportion to the bytes.
// Errors: IoError kCorruptData: with the byte for data that torch.save does not write; with the
//   name for a function that runs code (os.system, eval) anywhere in the pickle, as no file of
//   weights has one.
Pickle parse_pickle(std::span<const std::byte> bytes, const std::string& file);

}  // namespace fsdp
