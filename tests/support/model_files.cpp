#include "support/model_files.h"

#include "io/safetensors_header.h"

namespace fsdp {

void write_zeros(const std::filesystem::path& path, const std::vector<TensorSpec>& specs) {
  SafetensorsWriter writer(path, specs);
  for (const TensorSpec& spec : specs) {
    const auto size = static_cast<size_t>(count_elements(spec.dtype, spec.shape)->nbytes);
    writer.append(spec.name, std::vector<std::byte>(size));
  }
  writer.commit();
}

std::vector<TensorSpec> small_tensors(const std::vector<std::string>& names) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) specs.push_back({name, StoredDType::kF32, {2}});
  return specs;
}

}  // namespace fsdp
