// The twin of the kernels: loops over what bucket_math.h says of one element.
#include <weft/parallel/collectives/bucket/bucket.h>

#include <weft/parallel/collectives/bucket/bucket_math.h>

namespace weft::collectives::bucket {

namespace {

template <class To, class From>
void convert_all(To* to, const From* from, std::size_t n, double scale) {
  const auto factor = static_cast<Product<To, From>>(scale);
  for (std::size_t i = 0; i < n; ++i) to[i] = convert<To>(from[i], factor);
}

}  // namespace

void flatten(void* flat, std::span<const Piece> pieces, const Format& format) {
  with_type(format.flat, [&]<class To>(To) {
    with_type(format.pieces, [&]<class From>(From) {
      To* to = static_cast<To*>(flat);
      for (const Piece& piece : pieces) {
        convert_all(to, static_cast<const From*>(piece.data), piece.count, format.scale);
        to += piece.count;
      }
    });
  });
}

void unflatten(std::span<const Piece> pieces, const void* flat, const Format& format) {
  with_type(format.pieces, [&]<class To>(To) {
    with_type(format.flat, [&]<class From>(From) {
      const From* from = static_cast<const From*>(flat);
      for (const Piece& piece : pieces) {
        convert_all(static_cast<To*>(piece.data), from, piece.count, format.scale);
        from += piece.count;
      }
    });
  });
}

}  // namespace weft::collectives::bucket
