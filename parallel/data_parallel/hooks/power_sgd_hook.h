// PowerSgdHook: sends the gradient of a matrix as the product of two narrow matrices.
//
// PowerSGD (Vogels, Karimireddy and Jaggi, 2019). A gradient of two or more dimensions is treated as a matrix
// M of n rows and m columns, where n is the size of its first dimension. Each iteration starts with the m x r
// matrix Q of the previous one:
//   P = average of M Q, orthonormalized;  Q = average of M^H P;  the result is P Q^H, on all ranks.
// The ranks send (n + m) r numbers instead of n m. The residual M - P Q^H is added to the next gradient.
// Gradients of fewer dimensions, and gradients that compression would not make smaller by the factor
// min_compression_rate, are averaged uncompressed, in the same collective as P. Columns are orthonormalized
// by QR, in float32 or wider, which is exact for columns that are zero or dependent.
//
// Each rank computes P Q^H itself: ranks with the same hardware and libraries get the same bits. With
// `batched`, the results depend on the bucket plan; without it, they do not. If no rank computes a gradient
// of a parameter in an iteration, the part of its residual that this iteration sends is lost. Not
// thread-safe.
#pragma once

#include <weft/parallel/data_parallel/hooks/bucket_memory.h>
#include <weft/parallel/data_parallel/hooks/communication_hook.h>
#include <weft/parallel/data_parallel/hooks/residuals.h>

#include <torch/serialize/archive.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace weft::data_parallel {

// The options must be equal on all ranks.
struct PowerSgdOptions {
  std::int64_t rank = 1;                // r; at most n and m
  std::int64_t start_iteration = 1000;  // the number of first iterations without compression
  double min_compression_rate = 2;      // compress if (n + m) r times this is less than n m
  bool use_error_feedback = true;       // add the residual to the next gradient
  bool warm_start = true;               // true: start with the previous Q; false: with a random Q
  // A random Q of parameter i is at::randn({m, r}) in float32 (complex64), from a CPU generator with the seed
  // `seed + i + (t << 20)`. With warm_start t is 0, otherwise the number of iterations before this one.
  std::uint64_t seed = 0;
  // Treat a whole bucket as one square matrix, padded with zeros. This is faster, and less accurate if rank >
  // 1.
  bool batched = false;
};

class WEFT_EXPORT PowerSgdHook final : public CommunicationHook {
 public:
  // invalid_argument: rank < 1, start_iteration < 0, or min_compression_rate <= 0.
  explicit PowerSgdHook(const PowerSgdOptions& options = {});

  void begin_iteration() override;
  std::optional<rpc::Future<void>> run(const collectives::Group& group, GradientBucket& bucket,
                                       int step) override;

  // The number of elements of the gradients in the last iteration, and the number that this rank contributed
  // to collectives.
  struct Volume {
    std::int64_t gradients = 0, sent = 0;
  };
  Volume volume() const { return volume_; }

  // Call these between iterations. Residuals differ between the ranks: each rank saves and loads its own
  // state. After load() with the same options and module, the results equal those of a run that was not
  // interrupted (with `batched`, if the bucket plan is the same).
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  // Matrices of one shape, which are multiplied at once.
  struct Batch {
    std::int64_t count = 0, rows = 0, columns = 0, rank = 0;
    std::vector<std::size_t> members = {};     // the gradients of these matrices, as places in the bucket
    std::vector<std::int64_t> begins = {};     // the index of each member's first matrix
    std::vector<std::size_t> parameters = {};  // by matrix: the parameter under which its Q is kept
    at::Tensor matrices = {};                  // count x rows x columns: gradients, later residuals
    std::vector<at::Tensor> sums = {};         // the parts of `matrices`, by member
    at::Tensor p = {}, q = {}, start = {};     // count x (rows or columns) x rank; start: a random Q
    std::vector<at::Tensor> factors = {};      // the parts of q, by matrix
  };
  struct Bucket {
    bool planned = false;
    std::vector<std::size_t> plain;  // gradients that are not compressed, as places in the bucket
    std::vector<at::Tensor> copies;  // the copies of the `plain` gradients, in `first`
    std::vector<Batch> batches;
    at::Tensor first, second;  // reduced by the two collectives: plain gradients and all P; all Q
    bool compresses = false;   // in this iteration
  };

  bool is_worthwhile(std::int64_t rows, std::int64_t columns) const;
  void plan(const collectives::Group& group, const GradientBucket& content, Bucket& bucket) const;
  void allocate(const collectives::Group& group, const GradientBucket& content, Bucket& bucket) const;
  void fill_start(Batch& batch) const;
  void compute_p(Batch& batch, const GradientBucket& content);
  void decompress(Batch& batch, const GradientBucket& content);

  const PowerSgdOptions options_;
  std::int64_t iterations_ = 0;  // started so far
  Volume volume_;
  Residuals residuals_;
  std::map<std::size_t, at::Tensor> factors_;  // Q of the last iteration, by parameter
  BucketMemory<Bucket> buckets_;
};

}  // namespace weft::data_parallel
