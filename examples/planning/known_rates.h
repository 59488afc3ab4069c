// The rates of machines that fsdp-plan contains, by names for the command line.
#pragma once

#include <fsdp/rates.h>

#include <string>
#include <vector>

namespace planning {

// Returns the names: those of the files in examples/planning/rates.
std::vector<std::string> rates_names();

// Returns the rates of a name, or of a file.
// Errors: InvalidArgument kUsage if it is neither a name nor an existing file; the error lists the
//   names. The errors of fsdp::read_rates.
fsdp::Rates find_rates(const std::string& name_or_file);

// Returns the rates of a GPU of fsdp-plan's --gpu; empty: no --gpu is given.
// Errors: InvalidArgument kUsage if there are none.
fsdp::Rates rates_of_gpu(const std::string& gpu);

}  // namespace planning
